"""Comparison of our vision transformers with those of the package transformers, for random weights and the same images.

    python tools/interop/vision.py FOLDER            in an environment that has transformers

Each of their models is saved by their code and read by ours, and both get the same normalized images.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    SiglipConfig,
    SiglipModel,
    ViTMAEConfig,
    ViTMAEModel,
)

from imitate.models.visual import BACKBONES

SIZES = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
OURS = {"width": 96, "depth": 3, "heads": 4}
TOLERANCE = 5e-5


def models() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """Yield their model, our name of the family, and its options."""
    siglip = SiglipConfig(
        vision_config={**SIZES, "intermediate_size": 384, "image_size": 64},
        text_config={**SIZES, "intermediate_size": 384, "vocab_size": 100},
    )
    mae = ViTMAEConfig(**SIZES, intermediate_size=384, image_size=64, mask_ratio=0.0)
    return {
        "DINOv2": (
            Dinov2Model(Dinov2Config(**SIZES, image_size=56, patch_size=14)),
            "DINOv2",
            {"image_size": 56},
        ),
        "DINOv2 with registers": (
            Dinov2WithRegistersModel(
                Dinov2WithRegistersConfig(**SIZES, image_size=56, patch_size=14)
            ),
            "DINOv2",
            {"image_size": 56, "registers": 4},
        ),
        "SigLIP": (SiglipModel(siglip), "SigLIP", {"image_size": 64}),
        "MAE, the layout of VC-1": (ViTMAEModel(mae), "VC1", {"image_size": 64}),
    }


def their_tokens(model: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the last hidden state (B, T, D), with a masked autoencoder's patches in their original order."""
    if isinstance(model, SiglipModel):
        found: torch.Tensor = model.vision_model(images).last_hidden_state
        return found
    if not isinstance(model, ViTMAEModel):
        found = model(images).last_hidden_state
        return found
    patches = (images.shape[-1] // model.config.patch_size) ** 2
    out = model(images, noise=torch.arange(float(patches)).expand(len(images), -1))
    found = out.last_hidden_state
    return found


@torch.no_grad()
def main(folder: Path) -> int:
    """Compare the tokens; return 1 if they differ."""
    torch.manual_seed(0)
    failed = 0
    for name, (model, family, options) in models().items():
        model.eval()
        for weight in model.parameters():  # zeros and ones of initial weights would hide mistakes
            weight.add_(0.05 * torch.randn_like(weight))
        place = folder / name.split(",")[0].replace(" ", "_")
        model.save_pretrained(place)
        trunk = BACKBONES[family](
            pretrained=str(place / "model.safetensors"),
            imagenet_normalization=False,
            **OURS,
            **options,
        ).eval()
        images = torch.rand(2, 3, options["image_size"], options["image_size"])
        theirs, ours = their_tokens(model, images), trunk.tokens(images)
        difference = float((theirs - ours).abs().max()) if theirs.shape == ours.shape else torch.inf
        words = f"{difference:.1e} of tokens with a standard deviation of {theirs.std():.2f}"
        sys.stdout.write(f"{name}: {words}\n")
        failed |= difference > TOLERANCE
    sys.stdout.write(f"transformers {transformers.__version__}, torch {torch.__version__}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
