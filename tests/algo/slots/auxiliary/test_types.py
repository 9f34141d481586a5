"""Losses of the types of auxiliaries by hand."""

import math
import re
from pathlib import Path

import pytest
import torch

from imitate.algo.slots.auxiliary import AUXILIARIES, AuxiliaryContext
from imitate.errors import ConfigError
from imitate.models.reconstruction import ImageDecoder
from tests.tiny import tiny_algo, tiny_batch

SLOTS = Path(__file__).parents[4] / "imitate" / "algo" / "slots"


def test_the_configuration_lists_the_modules_that_register_an_auxiliary():
    texts = {path.stem: path.read_text() for path in SLOTS.glob("*.py")}
    registered = {
        name
        for module, text in texts.items()
        if "from imitate.algo.slots.auxiliary import" in text
        for name in re.findall(r'^@register\("(\w+)"', text, re.MULTILINE)
        if name == module
    }
    assert set(AUXILIARIES.own) == registered, "correct AUXILIARIES in imitate/config/auxiliary.py"


def made(kind, size=1, action=1, **settings):
    """An auxiliary of a policy that observes `size` numbers `s`, with no hidden layers."""
    algo = tiny_algo("bc", obs={"s": size}, action=action)
    of_type, section = AUXILIARIES.find(kind)
    config = section.model_validate({"type": kind, "layer_dims": [], **settings})
    torch.manual_seed(0)
    return of_type(config, AuxiliaryContext(algo.encoding, action, 0, algo.nets))


def linear(layer, weight, bias=0.0):
    layer.weight.data = torch.tensor(weight)
    layer.bias.data = torch.full_like(layer.bias, bias)


def obs(*rows):
    return {"s": torch.tensor(rows)}


# ---- observations that are reconstructed ---------------------------------------------------------


def test_the_decoder_is_wrong_by_the_mean_square():
    auxiliary = made("decoder", size=2)
    linear(auxiliary.decoder.heads[0], [[1.0, 0.0], [0.0, 2.0]], bias=1.0)
    # reconstructed (2, 5) and (1, 3)
    loss, info = auxiliary.loss({"obs": obs([1.0, 2.0], [0.0, 1.0])})
    assert loss.item() == pytest.approx((1 + 9 + 1 + 4) / 4)
    assert info["s_Loss"] == loss


@pytest.mark.parametrize("height", [16, 21, 84])
def test_images_of_any_size_are_decoded(height):
    assert ImageDecoder(5, (3, height, 20))(torch.randn(2, 5)).shape == (2, 3, height, 20)


def test_the_latent_of_the_vae_has_a_price_and_a_price_that_moves():
    settings = {"latent_dim": 2, "beta": 0.5, "target_kld_per_dim": 0.25, "beta_rate": 0.1}
    auxiliary = made("vae", **settings)
    linear(auxiliary.posterior.heads["mean"], [[1.0], [2.0]])
    linear(auxiliary.posterior.heads["logvar"], [[0.0], [0.0]])
    linear(auxiliary.decoder.heads[0], [[0.0, 0.0]], bias=3.0)
    batch = {"obs": obs([1.0])}
    # the divergence of N((1, 2), 1) is (1 + 4) / 2; reconstructed 3
    loss, info = auxiliary.loss(batch)
    assert info["KL_Loss"].item() == pytest.approx(2.5)
    assert loss.item() == pytest.approx(4.0 + 0.5 * 2.5)
    auxiliary.follow(batch)
    assert auxiliary.log_beta.item() == pytest.approx(math.log(0.5) + 0.1 * (1.25 - 0.25))
    fixed = made("vae", latent_dim=2, beta=0.5)
    fixed.loss(batch)
    fixed.follow(batch)
    assert fixed.log_beta.exp().item() == pytest.approx(0.5)


def test_the_encoder_learns_through_the_codes():
    auxiliary = made("vq", latent_dim=1, num_codes=2, num_layers=1, commitment_weight=0.25)
    linear(auxiliary.to_latent, [[1.0]])
    linear(auxiliary.decoder.heads[0], [[2.0]])
    auxiliary.quantizer.codebooks.copy_(torch.tensor([[[0.0], [4.0]]]))
    auxiliary.quantizer.initialized.fill_(True)
    # latent 3 has the code 4, decoded to 8 in place of 3; the distance from the code is 1
    loss, info = auxiliary.loss({"obs": obs([3.0])})
    assert info["Reconstruction_Loss"].item() == pytest.approx(25.0)
    assert loss.item() == pytest.approx(25.0 + 0.25)
    loss.backward()
    # dz: 2 (8 - 3) 2 straight through, and 0.25 * 2 (3 - 4); times the observation
    assert auxiliary.to_latent.weight.grad.item() == pytest.approx((20 - 0.5) * 3.0)
    codes = auxiliary.quantizer.codebooks.clone()
    with torch.no_grad():
        auxiliary.loss({"obs": obs([3.0])})
    assert torch.equal(auxiliary.quantizer.codebooks, codes)


# ---- what follows actions ------------------------------------------------------------------------


def window(*states, mask, rewards):
    return {
        "obs": {"s": torch.tensor([[[x] for x in states]])},
        "mask": torch.tensor([mask]),
        "rewards": torch.tensor([rewards]),
    }


def test_predicted_rewards_and_observations():
    auxiliary = made("predictive", steps=2, targets=["reward", "s"], hidden_dim=1)
    linear(auxiliary.reward_head[1], [[2.0]])
    linear(auxiliary.decoder.heads[0], [[1.0]], bias=1.0)
    states = torch.tensor([[[0.5], [-1.0]]])
    seen = window(0.0, 2.0, 9.0, mask=[True, True], rewards=[1.5, 1.0])
    # smooth L1 of 1 - 1.5 and of -2 - 1
    assert auxiliary.reward_loss(states, seen).item() == pytest.approx((0.125 + 2.5) / 2)
    every = torch.cat([torch.zeros(1, 1, 1), states], dim=1)
    # decoded 1, 1.5, 0 in place of 0, 2, 9
    losses = auxiliary.observation_losses(every, seen)
    assert losses["s"].item() == pytest.approx((0.5 + 0.125 + 8.5) / 3)
    seen["mask"] = torch.tensor([[True, False]])
    assert auxiliary.reward_loss(states, seen).item() == pytest.approx(0.125)
    losses = auxiliary.observation_losses(every, seen)
    assert losses["s"].item() == pytest.approx((0.5 + 0.125) / 2)


def test_predicted_latents_are_compared_by_their_angle_with_those_of_a_slow_encoder():
    auxiliary = made("predictive", size=2, steps=2, hidden_dim=2, projection_dim=2, target_rate=0.5)
    same = [[1.0, 0.0], [0.0, 1.0]]
    for layer in (auxiliary.to_features, auxiliary.projection, auxiliary.predictor):
        linear(layer, same)
    auxiliary.target_projection.load_state_dict(auxiliary.projection.state_dict())
    seen = {"obs": {"s": torch.tensor([[[9.0, 9.0], [3.0, 4.0], [0.0, -2.0]]])}}
    seen["mask"] = torch.tensor([[True, True]])
    states = torch.tensor([[[1.0, 0.0], [0.0, 5.0]]])
    # cosines 0.6 and -1
    assert auxiliary.latent_loss(states, seen, None).item() == pytest.approx((0.4 + 2.0) / 2)
    seen["mask"][0, 1] = False
    assert auxiliary.latent_loss(states, seen, None).item() == pytest.approx(0.4)
    linear(auxiliary.projection, [[3.0, 0.0], [0.0, 1.0]])
    auxiliary.follow({})
    assert auxiliary.target_projection.weight.tolist() == [[2.0, 0.0], [0.0, 1.0]]
    assert not auxiliary.target_projection.weight.requires_grad


def test_predicted_states_depend_on_the_actions_up_to_them():
    auxiliary = made("predictive", steps=3, targets=["s"], hidden_dim=4)
    actions = torch.zeros(1, 3, 1)
    seen = {"obs": {"s": torch.zeros(1, 4, 1)}, "actions": actions, "mask": torch.ones(1, 3)}
    found = []
    auxiliary.observation_losses = lambda states, window: (
        found.append(states) or {"s": states.sum()}
    )
    auxiliary.loss({"window": seen})
    actions[0, 1] = 1.0
    auxiliary.loss({"window": seen})
    changed = (found[0] != found[1]).any(-1)[0].tolist()
    assert changed == [False, False, True, True]


def test_steps_beyond_its_own_in_a_window_are_not_predicted():
    auxiliary = made("predictive", steps=2, targets=["reward", "s"], hidden_dim=4)
    whole = window(0.0, 2.0, 9.0, 900.0, mask=[True] * 3, rewards=[1.5, 1.0, 500.0])
    whole["actions"] = torch.ones(1, 3, 1)
    own = {key: value[:, :2] for key, value in whole.items() if key != "obs"}
    own["obs"] = {"s": whole["obs"]["s"][:, :3]}
    loss = auxiliary.loss({"window": own})[0].item()
    assert auxiliary.loss({"window": whole})[0].item() == pytest.approx(loss) and loss < 100


# ---- in algorithms -------------------------------------------------------------------------------

ENTRIES = {
    "decoder": {},
    "mutual_information": {"steps": 3, "estimator": "ml"},
    "predictive": {"steps": 3, "targets": ["latent", "reward", "s"]},
    "vae": {"target_kld_per_dim": 1.0},
    "vq": {"num_codes": 3},
}


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("name", ["bc", "sac"])
def test_every_weight_of_every_type_learns_and_a_copy_is_the_same(name, kind):
    entry = {"type": kind, "layer_dims": [4], **ENTRIES[kind]}
    words = {"obs": {"s": 3}, "action": 2, "algo": {"auxiliary": {"helper": entry}}}
    algo = tiny_algo(name, **words, train={"frame_stack": 2})
    copy = tiny_algo(name, **words, train={"frame_stack": 2}, seed=1)
    copy.deserialize(algo.serialize())
    net = algo.nets["auxiliary/helper"]
    before = {key: x.clone() for key, x in net.named_parameters() if x.requires_grad}
    infos = []
    for one in (algo, copy):
        one.set_train()
        torch.manual_seed(1)
        infos.append(one.train_on_batch(one.process_batch_for_training(tiny_batch(one)), 1))
    assert infos[0].keys() == infos[1].keys()
    assert infos[0]["auxiliary/helper/Loss"].isfinite()
    after = dict(net.named_parameters())
    assert [key for key, x in before.items() if torch.equal(x, after[key])] == []
    state = copy.nets["auxiliary/helper"].state_dict()
    assert all(torch.equal(x, state[key]) for key, x in net.state_dict().items())


@pytest.mark.parametrize("kind", [*ENTRIES, "dv"])
def test_what_changes_without_gradients_is_shared_by_processes_that_train_together(kind):
    more = {"type": "mutual_information", "estimator": "dv"} if kind == "dv" else ENTRIES[kind]
    entry = {"type": kind, "layer_dims": [4], **more}
    algo = tiny_algo("sac", obs={"s": 3}, action=2, algo={"auxiliary": {"helper": entry}})
    net, sent = algo.nets["auxiliary/helper"], []
    before = {key: x.clone() for key, x in net.state_dict().items()}
    algo.optimization.share_weights = lambda part: sent.extend(part.buffers())
    algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo)), 1)
    changed = {key for key, x in net.named_buffers() if key in before and not x.equal(before[key])}
    shared = {key for key, x in net.named_buffers() if any(x is each for each in sent)}
    assert changed <= shared


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"type": "decoder", "observations": ["t"]}, "no observation 't'; valid names: s"),
        ({"type": "predictive", "targets": ["rewards"]}, "no observation 'rewards'"),
    ],
)
def test_unknown_targets_are_refused(entry, words):
    with pytest.raises(ConfigError, match=words):
        tiny_algo("bc", obs={"s": 3}, algo={"auxiliary": {"helper": entry}})


def test_there_is_no_conditional_donsker_varadhan():
    entry = {"type": "mutual_information", "estimator": "dv", "given_observation": True}
    with pytest.raises(ConfigError, match="'dv' has no conditional form"):
        tiny_algo("bc", algo={"auxiliary": {"helper": entry}})
