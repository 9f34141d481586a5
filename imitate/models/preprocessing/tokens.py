"""Tokenizers of language instructions."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod

import torch
from torch import Tensor

from imitate.errors import ConfigError
from imitate.models.preprocessing.step import PreprocessStep, Space, Spec

LANGUAGE_KEY = "lang_emb"


class Tokenize(PreprocessStep):
    """Base class of tokenizers: convert the UTF-8 bytes of an instruction (``train.language_bytes``) to tokens.

    Tokens are integers stored as floats, for an encoder such as TokenCore; 0 is padding. A subclass implements its
    tokenizer in :meth:`encode` and sets the number of its tokens in :attr:`vocabulary`.

    Args:
        length: number of tokens of an instruction; shorter ones are padded with zeros, longer ones truncated.
        observation: key of the observation with the bytes.
    """

    invertible = False
    side = "before"
    vocabulary: int

    def __init__(self, length: int = 16, observation: str = LANGUAGE_KEY) -> None:
        super().__init__()
        if int(length) < 1:
            raise ConfigError(f"tokenize: length is {length}; expected at least 1")
        self.length = int(length)
        self._key = observation
        self._known: dict[bytes, list[int]] = {}

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, each at least 1 and below :attr:`vocabulary`."""

    def bind(self, spec: Spec) -> Spec:
        """Return the spec of the step's output."""
        space = spec.space(self._key, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1 or space.is_token:
            raise ConfigError(
                f"{self.name}: observation '{self._key}' is {space.modality} of shape {space.shape}; expected "
                "the bytes of a text, as train.language_bytes gives them"
            )
        return spec.with_obs({self._key: Space((self.length,), "low_dim", is_token=True)})

    def acts_on(self, key: str) -> bool:
        """Return true for the observation with the text."""
        return key == self._key

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert bytes ``(*B, N)`` to tokens ``(*B, length)``."""
        rows = value.reshape(-1, value.shape[-1]).to("cpu", torch.uint8)
        kinds, places = torch.unique(rows, dim=0, return_inverse=True)
        tokens = torch.tensor([self._row(bytes(row.tolist())) for row in kinds])
        return tokens[places].view(*value.shape[:-1], self.length).to(value)

    def _row(self, data: bytes) -> list[int]:
        if data not in self._known:
            tokens = self.encode(data.rstrip(b"\0").decode(errors="replace"))[: self.length]
            self._known[data] = tokens + [0] * (self.length - len(tokens))
        return self._known[data]


class HashTokens(Tokenize):
    """Tokenizer without a table: each word's token is a hash of its letters, so that any word has a token.

    Args:
        length: number of tokens of an instruction.
        vocabulary: number of tokens; two of W different words have the same token with probability about W^2 / (2
            vocabulary).
        observation: key of the observation with the bytes.
    """

    def __init__(
        self, length: int = 16, vocabulary: int = 4096, observation: str = LANGUAGE_KEY
    ) -> None:
        super().__init__(length, observation)
        if int(vocabulary) < 2:
            raise ConfigError(f"tokenize: vocabulary is {vocabulary}; expected at least 2")
        self.vocabulary = int(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the words; capitals and punctuation are ignored."""
        digests = (
            hashlib.sha256(word.encode()).digest() for word in re.findall(r"\w+", text.lower())
        )
        return [1 + int.from_bytes(digest[:8], "big") % (self.vocabulary - 1) for digest in digests]
