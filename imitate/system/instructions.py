"""Language instructions of demos, and the embeddings of instructions that a policy gets as an observation."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import ConfigError, DatasetError, UserError, nearest
from imitate.system.memory import read_arrays
from imitate.system.text import counted

if TYPE_CHECKING:
    from typing_extensions import Self

_UNREADABLE: tuple[type[Exception], ...] = (
    *(OSError, ValueError, LookupError, EOFError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, DatasetError),
)
"""numpy's errors for files that are not archives of arrays, or are damaged."""
LANGUAGE_KEY = "lang_emb"
"""Name of the observation with the embedding of the language instruction."""
TASK_ATTRS = ("language", "task_id")
"""Attributes of a demo that may contain its instruction."""


@dataclass(frozen=True, eq=False)
class Instructions:
    """Known instructions with their embeddings.

    Attributes:
        names: distinct instructions; the index of an instruction is its ``task_id``.
        vectors: (number of instructions, D) float32.
        are_texts: True if a vector is the instruction itself, as UTF-8 bytes padded with zeros, so that any instruction
            of at most this length can be used.
        encoder: name of the text model that computed the embeddings and can embed others; None if unknown.
    """

    names: tuple[str, ...]
    vectors: NDArray[np.float32]
    are_texts: bool = False
    encoder: str | None = None

    @property
    def words(self) -> str:
        """Description of the embeddings, for the log."""
        kind = "vectors of a table" if self.encoder is None else f"vectors of {self.encoder}"
        if self.are_texts:
            kind = "UTF-8 bytes"
        elif np.array_equal(self.vectors, np.eye(len(self.names), dtype=np.float32)):
            kind = "one-hot"
        return f"{LANGUAGE_KEY}: {kind} of {counted(len(self.names), 'instruction')}"

    @classmethod
    def one_hot(cls, names: Iterable[str]) -> Self:
        """Make a table without a language model: one-hot vectors of the sorted instructions."""
        known = tuple(sorted(set(names)))
        return cls(known, np.eye(len(known), dtype=np.float32))

    @classmethod
    def texts(cls, names: Iterable[str], size: int) -> Self:
        """Make a table whose vectors are the instructions' UTF-8 bytes, padded to ``size``."""
        known = tuple(sorted(set(names)))
        vectors = np.array([_bytes_of(name, size) for name in known], dtype=np.float32)
        return cls(known, vectors.reshape(-1, size), are_texts=True)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a table made by a text encoder: an .npz file with ``instructions`` (N,) and ``embeddings`` (N, D).

        The file may contain the name of the text model, ``encoder``.

        Raises:
            ConfigError: the file does not exist or has other content.
        """
        path = Path(path)
        try:
            table = read_arrays(path, ("instructions", "embeddings", "encoder"))
            names, vectors = table["instructions"], table["embeddings"]
            encoder = str(table["encoder"]) if "encoder" in table else None
        except _UNREADABLE as error:
            words = (str(error).splitlines() or ["damaged"])[0]
            raise ConfigError(
                f"train.language_embeddings: {path} cannot be read ({words}): write it with "
                "numpy.savez(path, instructions=[...], embeddings=array of shape (N, D))"
            ) from None
        fits = names.ndim == 1 and vectors.ndim == 2 and len(names) == len(vectors) > 0
        if not fits or names.dtype.kind != "U" or vectors.dtype.kind not in "fiu":
            raise ConfigError(
                f"train.language_embeddings: {path}: instructions are {names.dtype} {names.shape} and embeddings "
                f"{vectors.dtype} {vectors.shape}: expected text (N,) and numbers (N, D), N at least 1"
            )
        if len(set(names.tolist())) < len(names) or not np.isfinite(vectors).all():
            raise ConfigError(
                f"train.language_embeddings: {path}: an instruction occurs twice, or a value is "
                "not finite: write the table again"
            )
        return cls(tuple(names.tolist()), vectors.astype(np.float32), encoder=encoder)

    @property
    def size(self) -> int:
        """D, the size of an embedding."""
        return int(self.vectors.shape[1])

    def number(self, name: str) -> int:
        """Return the ``task_id`` of an instruction.

        Raises:
            UserError: the instruction is not known; the message lists the known ones.
        """
        if name in self.names:
            return self.names.index(name)
        shown = "; ".join(f"'{known}'" for known in self.names[:10])
        more = f" and {len(self.names) - 10} more" if len(self.names) > 10 else ""
        close = nearest(name, self.names) if len(self.names) > 10 else ""
        raise UserError(
            f"instruction '{name}' is not known; known: {shown}{more}{' - ' + close if close else ''}"
        )

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return the embedding (D,) of an instruction."""
        if self.are_texts:
            return _bytes_of(name, self.size)
        vector: NDArray[np.float32] = self.vectors[self.number(name)]
        return vector

    def to_dict(self) -> dict[str, Any]:
        """Return the table as lists and numbers, for a checkpoint."""
        saved: dict[str, Any] = {
            "instructions": list(self.names),
            "embeddings": self.vectors.tolist(),
        }
        if self.encoder is not None:
            saved["encoder"] = self.encoder
        return {**saved, "are_texts": True} if self.are_texts else saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Make the table from the result of :meth:`to_dict`."""
        vectors: ArrayLike = saved["embeddings"]
        encoder = saved.get("encoder")
        return cls(
            tuple(saved["instructions"]),
            np.asarray(vectors, dtype=np.float32),
            are_texts=saved.get("are_texts") is True,
            encoder=encoder if isinstance(encoder, str) else None,
        )


def _bytes_of(text: str, size: int) -> NDArray[np.float32]:
    data = text.encode()
    if len(data) > size:
        raise UserError(
            f"instruction '{text}' has {len(data)} bytes; expected at most {size} (train.language_bytes)"
        )
    return np.frombuffer(data.ljust(size, b"\0"), dtype=np.uint8).astype(np.float32)


def instruction_of(attrs: Mapping[str, Any], given: str | None = None) -> str | None:
    """Return the instruction of a demo.

    Args:
        attrs: attributes of the demo.
        given: instruction of the whole file in the configuration, which takes precedence.

    Returns:
        ``given``, else the attribute ``language``, else 'task <task_id>', else None.

    Raises:
        DatasetError: the attribute is an array of several values.
    """
    said = given or attrs.get("language")
    if not isinstance(said, str | None):  # h5py writes a list of strings like this
        texts = [
            t.decode() if isinstance(t, bytes) else t for t in np.asarray(said).ravel().tolist()
        ]
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise DatasetError(
                f"the attribute 'language' of a demo is an array of {counted(len(texts), 'value')}: expected one text"
            )
        said = texts[0]
    if said is not None and said.strip():
        return said.strip()
    task = attrs.get("task_id")
    return None if task is None else f"task {task}"
