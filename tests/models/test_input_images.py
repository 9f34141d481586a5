"""Size and colours of a trunk's images."""

import pytest
import torch

from imitate.models.input_images import IMAGENET, InputImages
from imitate.models.resnet import ResNet18Conv


def test_colours_by_hand():
    x = torch.full((1, 4, 2, 2), 0.6)
    out = InputImages(4, None, IMAGENET, "bilinear")(x)
    assert out[0, 0, 0, 0].item() == pytest.approx((0.6 - 0.485) / 0.229, abs=1e-6)
    assert torch.equal(out[:, 3], x[:, 3])  # no colour


def test_images_without_colours_stay():
    x = torch.rand(1, 1, 4, 4)
    assert torch.equal(InputImages(1, None, IMAGENET, "bilinear")(x), x)


def test_bicubic_overshoot_is_cut_off():
    x = torch.zeros(1, 3, 4, 4)
    x[..., 2:] = 1.0
    black = (0.0 - 0.485) / 0.229
    assert InputImages(3, 16, IMAGENET, "bicubic")(x)[0, 0].min() == pytest.approx(black, abs=1e-6)
    assert InputImages(3, 16, None, "bicubic")(x).min() < 0


def test_resnet_sees_images_of_its_size():
    trunk = ResNet18Conv(image_size=64).eval()
    x = torch.rand(1, 3, 40, 50)
    resized = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    assert trunk.output_shape((3, 40, 50)) == trunk(x).shape[1:] == (512, 2, 2)
    torch.testing.assert_close(trunk(x), ResNet18Conv.forward(trunk, resized))
