"""The slot of auxiliaries: batches, steps and shared encoders in algorithms of every kind."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from imitate.algo.slots.auxiliary import experience_of
from imitate.config.data_needs import FollowingSteps
from imitate.data.batches.sequence_dataset import SequenceDataset
from imitate.errors import ConfigError
from tests.demo_files import make_episode, write_demos
from tests.tiny import tiny_algo, tiny_batch, tiny_config

ENCODERS = {
    **dict.fromkeys(("act", "bc", "causal_bc", "diffusion_policy", "dt", "flow_policy"), "policy"),
    **{"vq_bet": "policy", "gl": "goal_network", "ppo": "policy"},
    **dict.fromkeys(("awac", "td3_bc", "iql", "fql"), "actor"),
    **dict.fromkeys(("bcq", "cql", "rebrac", "sac"), "critic"),
}
"""Network of an algorithm whose encoder an auxiliary shares."""


def weights_of(algo, name):
    return [weight.detach().clone() for weight in algo.nets[name].parameters()]


def moved(algo, name, before):
    return [not torch.equal(a, b) for a, b in zip(weights_of(algo, name), before, strict=True)]


@pytest.mark.parametrize("name", [*ENCODERS, "mbrl"])
def test_every_algorithm_trains_an_encoder_of_its_own_and_a_shared_one(name):
    shares = name in ENCODERS
    entries = {"own": {"type": "inverse", "layer_dims": [4]}}
    if shares:
        entries["shared"] = {**entries["own"], "encoder": ENCODERS[name]}
    online = {"ppo": {"online": {"enabled": True, "env": "Pendulum-v1"}}}
    algo = tiny_algo(
        name,
        obs={"s": 3},
        action=2,
        algo={"auxiliary": entries, **({"num_choices": 0} if name == "ppo" else {})},
        train=online.get(name, {}),
    )
    algo.set_train()
    before = {key: weights_of(algo, f"auxiliary/{key}") for key in entries}
    batch = algo.process_batch_for_training(tiny_batch(algo))
    for _ in range(2):  # some actors learn at every second update
        info = algo.train_on_batch(batch, 2)
    for key in entries:
        assert all(moved(algo, f"auxiliary/{key}", before[key]))
        assert info[f"auxiliary/{key}/Loss"] > 0
    algo.set_eval()
    kept = {key: weights_of(algo, f"auxiliary/{key}") for key in entries}
    measured = algo.train_on_batch(batch, 2, validate=True)
    assert "auxiliary/own/Loss" in measured
    assert not any(any(moved(algo, f"auxiliary/{key}", kept[key])) for key in entries)


def images(**auxiliary):
    """A policy of images: one convolution."""
    core = {"core_class": "VisualCore", "core_kwargs": {"feature_dimension": 16}}
    core["core_kwargs"] |= {"backbone_class": "ShallowConv", "pool_class": None}
    return tiny_algo(
        "bc",
        obs={"eye": (3, 16, 16)},
        action=2,
        algo={"auxiliary": auxiliary},
        observation={"encoder": {"rgb": core}},
    )


def gradients(algo, batch):
    algo.set_train()
    algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    return {key: weight.grad for key, weight in algo.nets["policy"].named_parameters()}


def test_a_shared_encoder_gets_the_gradient_of_the_weighted_loss_and_the_rest_of_the_policy_not():
    entry = {"type": "inverse", "layer_dims": [], "encoder": "policy"}
    found = {}
    for weight in (0.0, 0.5, 1.0):
        algo = images(helper={**entry, "loss": weight})
        found[weight] = gradients(algo, tiny_batch(algo))
    for key, plain in found[0.0].items():
        half, whole = found[0.5][key] - plain, found[1.0][key] - plain
        torch.testing.assert_close(2 * half, whole, rtol=1e-3, atol=1e-6)
        assert bool(whole.abs().max() > 1e-5) == key.startswith("encoder."), key


def test_accumulated_parts_make_one_step_of_both_networks():
    entry = {"type": "inverse", "encoder": "policy"}
    algo = tiny_algo(
        "bc", "train.gradient_accumulation=2", action=2, algo={"auxiliary": {"helper": entry}}
    )
    before = {name: weights_of(algo, name) for name in ("policy", "auxiliary/helper")}
    batch = algo.process_batch_for_training(tiny_batch(algo))
    algo.train_on_batch(batch, 1)
    assert not any(any(moved(algo, name, old)) for name, old in before.items())
    algo.train_on_batch(batch, 1)
    assert all(all(moved(algo, name, old)) for name, old in before.items())


# ---- batches -------------------------------------------------------------------------------------


def dataset(path, stored_next, **settings):
    """Two demos of 4 and 3 steps; observation and action of step t of demo d are 10 d + t."""
    random = np.random.default_rng(0)
    episodes = []
    for demo, length in enumerate((4, 3)):
        numbers = (10 * demo + np.arange(length + 1.0, dtype=np.float32))[:, None]
        changes = {
            "obs": {"s": numbers[:-1]},
            "next_obs": {"s": numbers[1:]} if stored_next else None,
            "actions": numbers[:-1] / 100,
            "rewards": numbers[:-1, 0],
            "terminals": np.arange(length) == length - 1,
        }
        episodes.append(replace(make_episode(random, length, {"s": 1}, 1), **changes))
    write_demos(path, episodes)
    following = FollowingSteps(2, rewards=True, ends=True)
    return SequenceDataset(path, ["s"], following=following, **settings)


@pytest.mark.parametrize("stored_next", [True, False])
def test_following_steps_end_with_their_demo(tmp_path, stored_next):
    data = dataset(tmp_path / "demos.hdf5", stored_next, frame_stack=2, get_pad_mask=True)
    batch = data[[1, 3, 4]]
    following = batch["following"]
    last = 4.0 if stored_next else 3.0
    assert following["obs"]["s"][..., 0].tolist() == [[2, 3], [last, last], [11, 12]]
    assert (100 * following["actions"][..., 0]).round().tolist() == [[1, 2], [3, 3], [10, 11]]
    assert following["rewards"].tolist() == [[1, 2], [3, 3], [10, 11]]
    assert following["mask"].tolist() == [[True, True], [stored_next, False], [True, True]]
    assert following["ends"].tolist() == [
        [0, 0],
        [1, 0],
        [0, 0],
    ]  # known where the state after it is not
    seen = experience_of(batch, frames=2)
    assert seen["window"]["obs"]["s"][0, ..., 0].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert seen["obs"]["s"][0, :, 0].tolist() == [0, 1]
    assert seen["next_obs"]["s"][0, :, 0].tolist() == [1, 2]
    assert (100 * seen["actions"][:, 0]).round().tolist() == [1, 3, 10]
    assert seen["part"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("bc", {"type": "rnd"}, "auxiliary.a.reward is 0.1, but bc does not learn from rewards"),
        ("hbc", {"type": "inverse"}, "move it to algo.planner or algo.actor"),
        ("ppo", {"type": "inverse", "steps": 3}, "windows of 3 steps"),
        ("bc", {"type": "invers"}, "did you mean 'inverse'"),
    ],
)
def test_what_cannot_work_is_refused(name, entry, words):
    config = tiny_config(name, train={"online": {"enabled": name == "ppo"}})
    with pytest.raises(ConfigError, match=words):
        config.with_overrides({"algo.auxiliary": {"a": entry}})


def test_an_unknown_network_is_refused_with_those_that_have_an_encoder():
    entry = {"a": {"type": "inverse", "encoder": "critic"}}
    with pytest.raises(ConfigError, match="no trained network 'critic'.*have one: policy"):
        tiny_algo("bc", algo={"auxiliary": entry})
