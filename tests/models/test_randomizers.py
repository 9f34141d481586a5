"""Crops, colours and noise."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.randomizers import (
    ColorRandomizer,
    CropRandomizer,
    GaussianNoiseRandomizer,
    crops_at,
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
    x = numbered(3, 2, 5, 7)
    crops = crops_at(x, torch.tensor([0, 2, 1, 0, 2, 1]), torch.tensor([3, 0, 2, 1, 3, 0]), 3, 4)
    assert crops.shape == (6, 2, 3, 4)
    assert torch.equal(crops[0], x[0, :, 0:3, 3:7])
    assert torch.equal(crops[1], x[0, :, 2:5, 0:4])
    assert torch.equal(crops[2], x[1, :, 1:4, 2:6])
    assert torch.equal(crops[5], x[2, :, 1:4, 0:4])
    # With gradients they are indexed, without them they are copied.
    places = torch.tensor([0, 2, 1, 0, 2, 1]), torch.tensor([3, 0, 2, 1, 3, 0])
    indexed = crops_at(x.clone().requires_grad_(), *places, 3, 4)
    assert indexed.requires_grad
    assert torch.equal(indexed, crops)
    last = x.contiguous(memory_format=torch.channels_last)
    assert crops_at(last, torch.zeros(3).long(), torch.zeros(3).long(), 3, 4).is_contiguous(
        memory_format=torch.channels_last
    )


def test_crops_reach_every_place_equally_often():
    crop = CropRandomizer((1, 4, 5), crop_height=3, crop_width=3, num_crops=6000)
    places, counts = crop(numbered(1, 1, 4, 5))[:, 0, 0, 0].unique(return_counts=True)
    assert places.tolist() == [0.0, 1.0, 2.0, 5.0, 6.0, 7.0]
    torch.testing.assert_close(counts / 6000, torch.full((6,), 1 / 6), atol=0.03, rtol=0)


def test_a_crop_of_the_whole_image_is_the_image():
    x = numbered(2, 3, 4, 5)
    assert torch.equal(CropRandomizer((3, 4, 5), crop_height=4, crop_width=5)(x), x)


def test_crops_of_each_step_or_shared_over_a_window():
    x = torch.arange(64.0).view(1, 1, 8, 8).expand(12, -1, -1, -1)  # 3 windows of 4 equal steps
    options = {"crop_height": 2, "crop_width": 2, "num_crops": 2}
    free = CropRandomizer((1, 8, 8), **options)(x, steps=4)[:, 0, 0, 0].view(3, 4, 2)
    assert all(len(window.unique()) > 2 for window in free)
    crop = CropRandomizer((1, 8, 8), **options, shared_over_time=True)
    shared = crop(x, steps=4)[:, 0, 0, 0].view(3, 4, 2)
    assert torch.equal(shared, shared[:, :1].expand(-1, 4, -1))
    assert len(shared[:, 0].unique()) > 3


@pytest.mark.parametrize(
    ("centre", "first"), [("down", 8.0), ("even", 9.0)], ids=["rounded down", "as torchvision"]
)
def test_centre_crop(centre, first):
    x = numbered(1, 1, 4, 7)
    crop = CropRandomizer((1, 4, 7), crop_height=2, crop_width=4, centre=centre).eval()
    row = torch.arange(first, first + 4)
    assert torch.equal(crop(x)[0, 0], torch.stack((row, row + 7)))


def test_a_centre_is_one_of_two():
    with pytest.raises(ConfigError, match="centre is 'middle'; expected 'down' or 'even'"):
        CropRandomizer((1, 4, 7), crop_height=2, crop_width=4, centre="middle")


def test_crop_randomizer_in_training_and_evaluation():
    crop = CropRandomizer((3, 8, 8), crop_height=6, crop_width=5, num_crops=4)
    x = torch.rand(2, 3, 8, 8)
    assert (crop.output_shape, crop(x).shape) == ((3, 6, 5), (8, 3, 6, 5))
    features = torch.tensor([[1.0], [2.0], [3.0], [4.0], [10.0], [10.0], [10.0], [30.0]])
    assert crop.merge(features).tolist() == [[2.5], [15.0]]
    crop.eval()
    assert torch.equal(crop(x), x[:, :, 1:7, 1:6])
    assert torch.equal(crop.merge(features), features)


@pytest.mark.parametrize("training", [True, False])
def test_position_encoding_tells_the_place_in_the_image(training):
    crop = CropRandomizer((1, 10, 10), crop_height=4, crop_width=4, pos_enc=True).train(training)
    out = crop(numbered(3, 1, 10, 10))
    assert out.shape == (3, *crop.output_shape) == (3, 3, 4, 4)
    index = (out[:, 1] * 100 + out[:, 2] * 10).round()  # row and column of each pixel
    assert torch.equal(index + torch.tensor([0.0, 100.0, 200.0])[:, None, None], out[:, 0])


def test_crops_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="crop of 76 x 76 does not fit an image of 64 x 84"):
        CropRandomizer((3, 64, 84))
    with pytest.raises(ConfigError, match="needs images"):
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


@pytest.mark.parametrize(
    ("options", "ratios"),
    [
        ({"brightness": 0.5, "contrast": None, "saturation": None, "hue": None}, (0.5, 1.5)),
        ({"brightness": [0.2, 0.4], "contrast": None, "saturation": None, "hue": None}, (0.2, 0.4)),
        ({"brightness": 3.0, "contrast": None, "saturation": None, "hue": None}, (0.0, 4.0)),
    ],
)
def test_amounts_of_colour(options, ratios):
    jitter = ColorRandomizer((3, 1, 1), **options)
    ratio = jitter(torch.full((4000, 3, 1, 1), 0.2))[:, 0, 0, 0] / 0.2
    low, high = ratios
    assert ratio.min().item() == pytest.approx(low, abs=0.01 * (1 + high))
    assert ratio.max().item() == pytest.approx(high, abs=0.01 * (1 + high))
    assert ratio.mean().item() == pytest.approx((low + high) / 2, abs=0.03 * (1 + high))


def test_colours_of_each_image_by_their_own_amounts():
    # Pure red at half brightness: turning the hue by h in [-0.3, 0.3] makes green (or blue) 6 h of it, at most all.
    jitter = ColorRandomizer((3, 2, 2), brightness=None, contrast=None, saturation=None, hue=0.3)
    x = torch.zeros(500, 3, 2, 2)
    x[:, 0] = 0.5
    out = jitter(x)
    assert torch.equal(out.amax(1), torch.full((500, 2, 2), 0.5))
    assert torch.equal(out.amin(1), torch.zeros(500, 2, 2))
    assert torch.equal(out, out[:, :, :1, :1].expand(-1, -1, 2, 2))
    assert (out[:, 1, 0, 0] > 0).float().mean().item() == pytest.approx(0.5, abs=0.07)
    # |h| < 1/12, that is 0.28 of the amounts, keeps the other colour below half of red's.
    weak = ((out[:, 1:, 0, 0].amax(-1) < 0.25) & (out[:, 0, 0, 0] == 0.5)).float().mean().item()
    assert weak == pytest.approx(0.278, abs=0.06)


def test_colours_change_in_random_order():
    # Brightness 2 then contrast 0 gives the cut mean, contrast 0 then brightness 2 twice the mean.
    options = {"brightness": [2, 2], "contrast": [0, 0], "saturation": None, "hue": None}
    jitter = ColorRandomizer((3, 1, 2), **options)
    x = torch.tensor([0.9, 0.1]).expand(1, 3, 1, 2)
    seen = {round(jitter(x)[0, 0, 0, 0].item(), 2) for _ in range(20)}
    assert seen == {0.6, 1.0}  # (1 + 0.2) / 2, and 2 x 0.5


def test_versions_of_colours_and_evaluation():
    jitter = ColorRandomizer((3, 4, 4), num_samples=3)
    x = torch.rand(20, 3, 4, 4)
    kept = x.clone()
    out = jitter(x)
    assert out.shape == (60, 3, 4, 4)
    assert torch.equal(x, kept)
    assert (out.min() >= 0, out.max() <= 1) == (True, True)
    assert len(out.reshape(20, 3, -1)[7].unique(dim=0)) == 3
    nearest = torch.cdist(out.flatten(1), x.flatten(1)).argmin(1)
    assert (nearest == torch.arange(20).repeat_interleave(3)).float().mean() > 0.7  # by chance 0.05
    assert torch.equal(jitter.eval()(x), x)


def test_colours_shared_over_a_window():
    x = torch.rand(3, 1, 3, 4, 4).expand(-1, 5, -1, -1, -1).reshape(15, 3, 4, 4)
    out = ColorRandomizer((3, 4, 4), shared_over_time=True)(x, steps=5).view(3, 5, 3, 4, 4)
    assert torch.equal(out, out[:, :1].expand(-1, 5, -1, -1, -1))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 8, 8), {}, "needs images of 3 channels, got shape"),
        ((3, 8, 8), {"hue": 0.6}, "hue is 0.6; expected a number from 0 to 0.5"),
        ((3, 8, 8), {"contrast": -0.1}, "contrast is -0.1; expected a number, at least 0"),
        ((3, 8, 8), {"saturation": [0.5, 0.2]}, "saturation is .0.5, 0.2.; expected"),
    ],
)
def test_impossible_colours_are_refused(shape, options, message):
    with pytest.raises(ConfigError, match=message):
        ColorRandomizer(shape, **options)
