"""MONet: masks and losses by hand, all weights in a policy's update, and discs that masks find."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.monet import SlotCore, SlotDecoder, drawn, slot_losses
from tests.tiny import tiny_algo, tiny_batch


def normal(distance, sigma):
    return math.exp(-0.5 * (distance / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def test_masks_by_hand():
    core = SlotCore((1, 8, 8), slots=3, slot_dim=2)
    scopes = []

    def attention(x):
        scopes.append(x[0, -1, 0, 0].item())
        return torch.tensor([0.25, 0.75]).log().reshape(1, 2, 1, 1).expand(1, 2, 8, 8)

    core.attention.forward = attention
    masks = core.log_masks(torch.zeros(1, 1, 8, 8)).exp()
    assert masks[0, :, 3, 5].tolist() == pytest.approx([0.25, 0.75 * 0.25, 0.75 * 0.75])
    assert scopes == pytest.approx([1.0, 0.75])


def test_losses_by_hand():
    x = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2)
    masks = torch.tensor([0.25, 0.75]).log().reshape(1, 2, 1, 1).expand(1, 2, 1, 2)
    posterior = torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[0.0], [math.log(4.0)]]])
    made = torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1, 1).expand(1, 2, 1, 1, 2)
    even = torch.full((1, 2, 1, 2), 0.5).log()
    error, kl, mask_kl = slot_losses(x, masks, posterior, (made, even), (1.0, 2.0))
    first = 0.25 * normal(0, 1) + 0.75 * normal(1, 2)
    second = 0.25 * normal(1, 1) + 0.75 * normal(0, 2)
    assert error.item() == pytest.approx(-math.log(first) - math.log(second), rel=1e-5)
    assert kl.item() == pytest.approx(0.5 + 0.5 * (4.0 - 1.0 - math.log(4.0)))
    assert mask_kl.item() == pytest.approx(2 * (0.25 * math.log(0.5) + 0.75 * math.log(1.5)))


def test_slots_are_drawn_with_the_root_of_their_variance():
    torch.manual_seed(0)
    slots = drawn(torch.full((4000,), 3.0), torch.full((4000,), math.log(4.0)))
    assert slots.std().item() == pytest.approx(2.0, rel=0.05)
    assert slots.mean().item() == pytest.approx(3.0, rel=0.05)


def policy(**entry):
    encoder = {"core_class": "SlotCore", "core_kwargs": {"slots": 3}, "obs_randomizer_class": None}
    auxiliary = {"objects": {"type": "monet", **entry}}
    words = {"obs": {"s": 2, "camera": (3, 9, 12)}, "algo": {"auxiliary": auxiliary}}
    return tiny_algo("bc", **words, observation={"encoder": {"rgb": encoder}})


@pytest.mark.parametrize("encoder", ["policy", None])
def test_every_weight_learns_in_a_policy(encoder):
    algo = policy(encoder=encoder)
    before = {key: x.clone() for key, x in algo.nets["auxiliary/objects"].named_parameters()}
    core = algo.nets["policy"].encoder.obs.nets["camera"].core
    attention = core.attention.last.weight.clone()
    algo.set_train()
    info = algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo)), 1)
    assert info["auxiliary/objects/Loss"].isfinite()
    after = dict(algo.nets["auxiliary/objects"].named_parameters())
    assert [key for key, x in before.items() if torch.equal(x, after[key])] == []
    assert not torch.equal(core.attention.last.weight, attention)


def test_other_encoders_and_small_images_are_refused():
    words = {"obs": {"camera": (3, 48, 48)}, "algo": {"auxiliary": {"a": {"type": "monet"}}}}
    with pytest.raises(ConfigError, match="set observation.encoder.rgb.core_class to SlotCore"):
        tiny_algo("bc", **words)
    with pytest.raises(ConfigError, match="at least 8 x 8"):
        SlotCore((3, 7, 20))


def discs(count, generator):
    """Images (N, 3, 16, 16) of a red, a green and a blue disc in three of four quarters, and their masks."""
    quarters = torch.rand(count, 4, generator=generator).argsort(1)[:, :3]
    shift = torch.rand(count, 3, 2, generator=generator) * 3.0 + 2.5
    centre = torch.stack([quarters // 2, quarters % 2], -1) * 8.0 + shift
    place = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
    masks = ((place - centre[..., None, None]).square().sum(2) <= 6.0).float()
    return masks, masks  # a colour for each disc


def overlapping_discs(count, generator):
    """The same at any places, where later colours cover earlier ones; and the masks of what is seen."""
    centre = torch.rand(count, 3, 2, generator=generator) * 11 + 2.5
    place = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
    masks = ((place - centre[..., None, None]).square().sum(2) <= 6.0).float()
    masks[:, 0] *= (1 - masks[:, 1]) * (1 - masks[:, 2])
    masks[:, 1] *= 1 - masks[:, 2]
    return masks, masks


def overlap(core, images, masks):
    """Mean over discs that are seen of the greatest intersection over union with a slot's mask."""
    with torch.no_grad():
        chosen = core.log_masks(images).argmax(1)
    slots = torch.nn.functional.one_hot(chosen, core.slots).permute(0, 3, 1, 2).float()
    both = torch.einsum("nghw,nkhw->nkg", slots, masks)
    either = slots.sum((2, 3))[:, None] + masks.sum((2, 3))[:, :, None] - both
    found = (both / either.clamp(min=1)).amax(-1)
    return found[masks.sum((2, 3)) > 6].mean().item()


def learned(
    updates, enough, draw=discs, seed=0, slot_dim=8, rate=3e-3, weight=0.1, sigmas=(0.3, 0.35)
):
    """Greatest overlap of 64 other images, looked at each 20 updates."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    core = SlotCore((3, 16, 16), slots=4, slot_dim=slot_dim, channels=12)
    decoder = SlotDecoder(core, 16)
    weights = [*core.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, rate)
    shown, found = draw(64, generator), 0.0
    for step in range(1, updates + 1):
        x = draw(16, generator)[0]
        log_masks = core.log_masks(x)
        posterior = core.posterior(x, log_masks)
        losses = slot_losses(x, log_masks, posterior, decoder(drawn(*posterior)), sigmas)
        error, kl, mask_kl = (loss.mean() for loss in losses)
        optimizer.zero_grad()
        ((error + weight * kl + weight * mask_kl) / x[0].numel()).backward()
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()
        if step % 20 == 0:
            found = max(found, overlap(core, *shown))
            if found > enough:
                break
    return found


def test_masks_find_discs():
    # a disc of 21 pixels has an overlap of 0.08 with a slot of the whole image; five seeds reach 0.37 to 0.52
    assert learned(60, 0.3) > 0.3


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_disc_has_a_slot_of_its_own(seed):
    """Slots of four numbers have room for the place and colour of one disc, not of two: 4,000 to 12,000 updates."""
    settings = {"slot_dim": 4, "rate": 1e-3, "weight": 0.5, "sigmas": (0.09, 0.11)}
    assert learned(15_000, 0.8, overlapping_discs, seed, **settings) > 0.8
