"""Embedding of a language instruction while acting: from the policy's table, or computed by its text model."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from imitate.data.language import Instructions
from imitate.errors import UserError
from imitate.models.language import TransformersText

_SAME = 0.01
"""Largest relative distance at which a stored embedding and one computed now count as equal."""


def vector_of(known: Instructions, text: str) -> NDArray[np.float32]:
    """Return the embedding (D,) of an instruction.

    Known instructions need no text model. Other instructions are embedded if the table names its text model and the
    model is on this machine; nothing is downloaded.

    Args:
        known: the policy's table of instructions.
        text: the instruction.

    Raises:
        UserError: the instruction is not known, and the table names no text model, or the model on this machine is a
            different one.
        ConfigError: the model is not on this machine, or its package is not installed.
    """
    if known.are_texts or text in known.names or known.encoder is None:
        return known.vector(text)
    vectors = text_model(known.encoder).embed([known.names[0], text])
    sample = vectors[0]
    stored = known.vectors[0]
    if sample.shape != stored.shape or not np.linalg.norm(
        sample - stored
    ) <= _SAME * np.linalg.norm(stored):
        raise UserError(
            f"instruction '{text}' is not known, and the text model '{known.encoder}' on this machine is not the one "
            f"that the policy learned with: its vector of '{known.names[0]}' is another; known: "
            f"{'; '.join(known.names[:10])}"
        )
    vector: NDArray[np.float32] = vectors[1]
    return vector


@functools.lru_cache(maxsize=1)
def text_model(name: str) -> TransformersText:
    """Return the text model of that name from this machine, loaded only once; nothing is downloaded."""
    return TransformersText(name, local_only=True)
