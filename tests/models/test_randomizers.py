"""Crops and noise."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.randomizers import (
    CropRandomizer,
    GaussianNoiseRandomizer,
    centre_crop,
    random_crops,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def numbered(batch, channels, height, width):
    """Every pixel of every image has its own number."""
    return torch.arange(float(batch * channels * height * width)).view(
        batch, channels, height, width
    )


def test_crops_are_windows_of_their_own_image():
    x = numbered(6, 2, 5, 7)
    crops = random_crops(x, 3, 4, num_crops=2)
    assert crops.shape == (12, 2, 3, 4)
    for i, crop in enumerate(crops):
        image = x[i // 2]
        top, left = divmod(int((crop[0, 0, 0] - image[0, 0, 0]).item()), 7)
        assert torch.equal(crop, image[:, top : top + 3, left : left + 4])


def test_crops_reach_every_place_equally_often():
    x = numbered(1, 1, 4, 5)
    corners = random_crops(x, 3, 3, num_crops=6000)[:, 0, 0, 0]
    places, counts = corners.unique(return_counts=True)
    assert places.tolist() == [0.0, 1.0, 2.0, 5.0, 6.0, 7.0]
    torch.testing.assert_close(counts / 6000, torch.full((6,), 1 / 6), atol=0.03, rtol=0)


def test_a_crop_of_the_whole_image_is_the_image():
    x = numbered(2, 3, 4, 5)
    assert torch.equal(random_crops(x, 4, 5), x)


def test_centre_crop():
    x = numbered(1, 1, 4, 7)
    assert centre_crop(x, 2, 4)[0, 0].tolist() == [[8.0, 9.0, 10.0, 11.0], [15.0, 16.0, 17.0, 18.0]]


def test_crop_randomizer_in_training_and_evaluation():
    crop = CropRandomizer((3, 8, 8), crop_height=6, crop_width=5, num_crops=4)
    x = torch.rand(2, 3, 8, 8)
    assert crop.output_shape == (3, 6, 5)
    assert crop(x).shape == (8, 3, 6, 5)
    features = torch.tensor([[1.0], [2.0], [3.0], [4.0], [10.0], [10.0], [10.0], [30.0]])
    assert crop.merge(features).tolist() == [[2.5], [15.0]]
    crop.eval()
    assert torch.equal(crop(x), x[:, :, 1:7, 1:6])
    assert torch.equal(crop.merge(features), features)


@pytest.mark.parametrize("training", [True, False])
def test_position_encoding_tells_the_place_in_the_image(training):
    crop = CropRandomizer((1, 10, 10), crop_height=4, crop_width=4, pos_enc=True).train(training)
    x = numbered(3, 1, 10, 10)
    out = crop(x)
    assert out.shape == (3, *crop.output_shape) == (3, 3, 4, 4)
    index = (out[:, 1] * 100 + out[:, 2] * 10).round()  # row and column of each pixel
    assert torch.equal(index + torch.tensor([0.0, 100.0, 200.0])[:, None, None], out[:, 0])


def test_crops_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="crop of 76 x 76 does not fit an image of 64 x 84"):
        CropRandomizer((3, 64, 84))
    with pytest.raises(ConfigError, match="wants images"):
        CropRandomizer((7,))


def test_noise_is_gaussian():
    noise = GaussianNoiseRandomizer((1,), noise_mean=1.0, noise_std=0.5)
    samples = noise(torch.zeros(20000, 1))
    assert samples.mean().item() == pytest.approx(1.0, abs=0.02)
    assert samples.std().item() == pytest.approx(0.5, abs=0.02)
    # Of a Gaussian 2.3 % lie two standard deviations below the mean; of uniform noise none.
    assert (samples < 0.0).float().mean().item() == pytest.approx(0.0228, abs=0.005)


def test_noise_options():
    noise = GaussianNoiseRandomizer((2,), noise_std=3.0, limits=(-0.5, 0.25), num_samples=3)
    out = noise(torch.zeros(4, 2))
    assert out.shape == (12, 2)
    assert (out.min().item(), out.max().item()) == (-0.5, 0.25)
    assert noise.merge(torch.arange(6.0).view(6, 1)).tolist() == [[1.0], [4.0]]
    x = torch.randn(4, 2)
    assert torch.equal(noise.eval()(x), x)
