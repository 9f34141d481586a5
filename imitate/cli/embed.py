"""``imitate dataset embed``: compute embeddings of instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from imitate.data import DatasetFile
from imitate.data.language import instruction_of
from imitate.errors import DatasetError, UserError
from imitate.system.plain_files import fresh, replaced


def embed(
    files: Annotated[
        list[Path], typer.Argument(help="Demonstrations whose instructions are embedded.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Table to write, .npz.")],
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="Text model: its name at Hugging Face, or a folder."),
    ] = "openai/clip-vit-large-patch14",
    text: Annotated[
        list[str] | None, typer.Option("--text", help="One more instruction; may be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the table.")] = False,
) -> None:
    """Compute a table of embedding vectors for the instructions of demonstrations.

    Name the table in `train.language_embeddings` and list `lang_emb` under `observation.modalities.obs.low_dim`.
    Training, and acting with instructions in the table, then need no text model.
    Needs `pip install 'transformers>=4.40'`.
    """
    from imitate.models.language import TransformersText  # imported late: it imports torch

    if out.exists() and not overwrite:
        raise UserError(f"{out}: exists; choose another --out, or --overwrite")
    texts = sorted({*_instructions(files), *(text or ())})
    vectors = TransformersText(encoder).embed(texts)
    with replaced(out) as part, fresh(part) as file:
        np.savez(file, instructions=np.array(texts), embeddings=vectors, encoder=np.array(encoder))
    typer.echo(f"{out}: {len(texts)} instructions, vectors of {vectors.shape[1]}")


def _instructions(files: list[Path]) -> set[str]:
    told: set[str] = set()
    for path in files:
        with DatasetFile(path) as file:
            of_demos = {instruction_of(file.attrs(demo)) for demo in file.demos()}
        if None in of_demos:
            raise DatasetError(
                f"{path}: some demos have neither an attribute 'language' nor 'task_id'; "
                "write it, or give the texts of train.data[].lang with --text and leave the "
                "file out"
            )
        told |= {said for said in of_demos if said is not None}
    return told
