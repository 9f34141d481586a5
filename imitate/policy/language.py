"""Text encoders, which embed language instructions for ``train.language_embeddings`` once before training.

Training needs no text encoder; a policy needs one only for an instruction that is not in its table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.errors import ConfigError
from imitate.system.extras import missing

_ADVICE = {
    False: "give the name of a text model at Hugging Face, or a folder with its config.json, tokenizer and "
    "model.safetensors",
    True: "give one of the policy's own instructions, or first download the text model: hf download {}",
}
"""Advice if a model cannot be loaded, by whether downloads were forbidden."""


class TransformersText:
    """Text model of Hugging Face's ``transformers``.

    The embedding of a text is CLIP's projected text embedding, SigLIP's pooled embedding, or for other models (MiniLM
    and other sentence encoders) the mean of its token features.

    Args:
        name: name of the model at Hugging Face, such as 'openai/clip-vit-large-patch14' (robomimic's, D = 768), or a
            folder.
        local_only: true to download nothing; the model must then be on this machine.

    Raises:
        ConfigError: the package is not installed, or the model cannot be loaded.
    """

    def __init__(self, name: str, local_only: bool = False) -> None:
        try:
            import transformers
        except ImportError as error:
            error.name = error.name or "transformers"
            raise ConfigError(f"encoder '{name}': {missing('language', error)}") from error
        try:
            where = {"local_files_only": local_only, "trust_remote_code": False}
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name, **where)
            self.kind: str = transformers.AutoConfig.from_pretrained(name, **where).model_type
            classes = {
                "clip": "CLIPTextModelWithProjection",
                "siglip": "SiglipTextModel",
            }
            model = getattr(transformers, classes.get(self.kind, "AutoModel"))
            self.model: Any = model.from_pretrained(name, use_safetensors=True, **where).eval()
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"encoder '{name}' cannot be loaded ({reason}); {_ADVICE[local_only].format(name)}"
            ) from error

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed N texts as ``(N, D)``; long texts are truncated at the model's limit."""
        # SigLIP was trained on texts padded to its maximum length.
        padding = "max_length" if self.kind == "siglip" else True
        tokens = self.tokenizer(list(texts), padding=padding, truncation=True, return_tensors="pt")
        output = self.model(**tokens)
        vectors: Tensor
        if self.kind == "clip":
            vectors = output.text_embeds
        elif self.kind == "siglip":
            vectors = output.pooler_output
        else:
            vectors = mean_over_tokens(output.last_hidden_state, tokens["attention_mask"])
        array: NDArray[np.float32] = vectors.float().numpy()
        return array


def mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average token features ``(N, L, D)`` to ``(N, D)``, without padded tokens, which have 0 in ``mask`` (N, L)."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1)
