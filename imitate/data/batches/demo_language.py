"""Language instructions of a dataset's demos, and their keys in batches."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.data.batches.file_rows import DemoOrigin
from imitate.data.batches.statistics import QUANTILES, KeyStats
from imitate.data.batches.store import DataSource
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.functional.transfer import to_device
from imitate.system.instructions import LANGUAGE_KEY, TASK_ATTRS, Instructions, instruction_of


class DemoLanguage:
    """Language instruction of each demo of a dataset, and its embedding.

    Args:
        sources: the files.
        demos: demos of the dataset.
        instructions: table of instructions; None for one-hot vectors of the instructions in the data.
        wanted: true if batches need ``lang_emb`` from the table, which must then contain each demo's instruction.
        files: open files of the sources.

    Attributes:
        instructions: the table of instructions.

    Raises:
        DatasetError: ``lang_emb`` is wanted, but the instruction of a demo is unknown or not in the table.
    """

    def __init__(
        self,
        sources: Sequence[DataSource],
        demos: Sequence[DemoOrigin],
        instructions: Instructions | None,
        wanted: bool,
        files: DataFiles,
    ) -> None:
        given = _instructions_of(sources, demos, files)
        known = [name for name in given if name is not None]
        table = Instructions.one_hot(known) if instructions is None else instructions
        number = {name: i for i, name in enumerate(table.names)}
        self.instructions = table
        self._task_ids: NDArray[np.int64] = np.array(
            [-1 if name is None else number.get(name, -1) for name in given], dtype=np.int64
        )
        self._any = bool(known)
        if wanted and (self._task_ids < 0).any():
            at = int(np.argmin(self._task_ids))
            source = sources[demos[at].source]
            if given[at] is None:
                raise _without(source, demos[at], files)
            raise _unknown(source, demos[at], given[at], table)
        self._vectors = torch.from_numpy(table.vectors) if wanted else None

    def add_to(self, batch: dict[str, Any], demo: NDArray[np.int64], steps: int) -> None:
        """Add ``task_id`` (B,) and, if wanted, ``lang_emb`` (B, D) of the samples' demos to a batch."""
        if not self._any:
            return
        ids = torch.from_numpy(self._task_ids[demo])
        if self._vectors is not None:
            ids = to_device(ids, self._vectors.device)
            vectors = self._vectors[ids][:, None].expand(-1, steps, -1)
            for group in ("obs", "next_obs"):
                if group in batch:
                    batch[group][LANGUAGE_KEY] = vectors
        batch["task_id"] = ids

    def to(self, device: torch.device | str) -> None:
        """Move the embeddings to a device."""
        if self._vectors is not None:
            self._vectors = self._vectors.to(device)

    def statistics(self) -> KeyStats:
        """Return statistics with which normalization leaves the embeddings unchanged."""
        zero, one = np.zeros(self.instructions.size), np.ones(self.instructions.size)
        quantiles = {level: one if level > 0.5 else -one for level in QUANTILES}
        return KeyStats(zero, one, -one, one, lambda: quantiles)


def holds_language(sources: Sequence[DataSource], files: DataFiles) -> bool:
    """Return true if the first demo of each file contains an observation ``lang_emb``."""
    return all(_holds(source, files) for source in sources)


def _holds(source: DataSource, files: DataFiles) -> bool:
    file = files.open(source.path)
    demos = file.demos(source.filter_key)
    return bool(demos) and file.has(demos[0], f"obs/{LANGUAGE_KEY}")


def instructions_in(sources: Sequence[DataSource], files: DataFiles) -> set[str]:
    """Return the instructions of the demos that the sources select."""
    found: set[str | None] = set()
    for source in sources:
        file = files.open(source.path)
        for demo in source.chosen(file):
            found.add(instruction_of(file.attrs(demo, TASK_ATTRS), source.lang))
    return {name for name in found if name is not None}


def _instructions_of(
    sources: Sequence[DataSource], demos: Sequence[DemoOrigin], files: DataFiles
) -> list[str | None]:
    given: list[str | None] = []
    for demo in demos:
        source = sources[demo.source]
        attrs = files.open(source.path).attrs(demo.name, TASK_ATTRS)
        given.append(instruction_of(attrs, source.lang))
    return given


_LIKE_AN_INSTRUCTION = re.compile("lang|instruction|task|prompt")


def _without(source: DataSource, demo: DemoOrigin, files: DataFiles) -> DatasetError:
    """Return the error for a demo without an instruction; it lists arrays and attributes that may contain one."""
    file = files.open(source.path)
    texts = [
        f"attribute '{name}'"
        for name, value in file.attrs(demo.name).items()
        if isinstance(value, str)
    ]
    with file.reading(f"demo '{demo.name}'"):
        texts += [
            f"array '{key}'"
            for key in file.keys(demo.name)
            if file.array(demo.name, key).dtype.kind in "OSU"
        ]
    found = " and ".join(text for text in texts if _LIKE_AN_INSTRUCTION.search(text))
    remedy = f", with the text of its {found}, which imitate does not read" if found else ""
    return DatasetError(
        f"{source.path}: demo '{demo.name}' has no instruction, which the observation '{LANGUAGE_KEY}' is made from: "
        f"set lang of this file in train.data, or write the attribute language of each demo{remedy}"
    )


def _unknown(
    source: DataSource, demo: DemoOrigin, given: str | None, table: Instructions
) -> DatasetError:
    shown = "; ".join(f"'{name}'" for name in table.names[:5])
    return DatasetError(
        f"{source.path}: demo '{demo.name}': instruction '{given}' is not known "
        f"(known: {shown}{' ...' if len(table.names) > 5 else ''}): "
        "add it to the table train.language_embeddings, or train on demos with it"
    )
