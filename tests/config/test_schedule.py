import json

import pytest
import torch

from imitate import load_config
from imitate.config.schedule import Schedule
from imitate.errors import ConfigError
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.train.trainer import train
from tests.tiny import (
    tiny_algo,
    tiny_batch,
    tiny_config,
    tiny_demos,
    tiny_run,
    tiny_tree,
)

SAVED = {"save": {"enabled": True}}
FALLS = {"schedule": [[0, 1.0], [0.5, 0.2]]}


def by(*points):
    return {"schedule": [list(point) for point in points]}


@pytest.mark.parametrize(
    ("points", "values"),
    [
        ([(0.2, 1.0), (0.6, 3.0)], {0: 1, 0.2: 1, 0.3: 1.5, 0.4: 2, 0.6: 3, 1: 3}),
        ([(0.5, 1.0), (0.5, 4.0), (1, 2.0)], {0.49: 1, 0.5: 4, 0.75: 3, 1: 2}),
        ([(0.0, 7.0)], {0: 7, 1: 7}),
    ],
)
def test_values_are_linear_between_points(points, values):
    schedule = Schedule(tuple(points))
    assert {at: schedule.at(at) for at in values} == pytest.approx(values)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("sac", "algo.target_tau", by(), "target_tau: schedule: wanted pairs"),
        ("sac", "algo.target_tau", by((0, 1), (0.5, "x")), r"wanted pairs .*, got \[0.5, 'x'\]"),
        ("sac", "algo.target_tau", by((0.5, 1), (0.2, 1)), "in rising order, got"),
        ("sac", "algo.target_tau", by((0, 1), (2, 1)), "in rising order, got"),
        ("sac", "algo.target_tau", by((0, 0.5), (0.5, 3.0), (1, 0.1)), "got 3.0, wanted a number"),
        ("sac", "algo.n_step", by((0, 1), (1, 3)), "n_step: is read once, .* give a plain value"),
        ("sac", "algo.actor.layer_dims", by((0, 1)), "layer_dims: is read once"),
        (
            "sac",
            "train.online.update_ratio",
            by((0, 1.0)),
            "only numbers in algo and train.online.prioritized",
        ),
        (
            "sac",
            "algo.optim_params.critic.learning_rate.initial",
            by((0, 1.0)),
            "critic.learning_rate.initial: an optimizer has schedules of its own",
        ),
    ],
)
def test_refused(name, key, value, words):
    config = tiny_config(name, obs={"s": 1})
    with pytest.raises(ConfigError, match=words):
        config.with_overrides({key: value})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sac", "actor.dropout"),
        ("sac", "temperature.initial"),
        ("ppo", "net.init_std"),
        ("sac", "actor.max_gradient_norm"),  # read when the optimizers are made
    ],
)
def test_a_number_that_is_read_once_is_refused_before_it_could_be_kept(name, path):
    value = by((0, 0.5), (1, 0.1))
    config = tiny_config(name, obs={"s": 1}).with_overrides({f"algo.{path}": value})
    with pytest.raises(ConfigError, match=f"algo.{path}: is read once, before the training"):
        tiny_algo(name, obs={"s": 1}, algo=config.to_dict()["algo"]).log_info({})


def test_data_do_not_keep_the_first_value_of_a_scheduled_discount():
    config = tiny_config("sac", obs={"s": 1}, algo={"discount": by((0, 0.5), (1, 0.9))})
    with pytest.raises(ConfigError, match="algo.discount: is read once"):
        config.algo.data_needs(config)


def test_a_configuration_keeps_its_schedules():
    config = tiny_config("dqn", obs={"s": 1}, algo={"extrinsic": FALLS})
    saved = json.loads(config.to_json())["algo"]
    assert saved["extrinsic"] == FALLS and saved["epsilon"] == by((0, 1.0), (0.1, 0.05))
    assert load_config(config.to_dict()) == config
    assert config.with_overrides({"algo.epsilon": 0.3}).algo.epsilon == 0.3


def test_a_loss_follows_the_schedule_of_its_weight():
    algo = tiny_algo("ppo", obs={"s": 2}, algo={"entropy_weight": FALLS})
    other = tiny_algo("ppo", obs={"s": 2}, algo={"entropy_weight": FALLS})
    for progress, weight in ((0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (1.0, 0.2)):
        algo.set_progress(progress)
        assert algo.config.entropy_weight == pytest.approx(weight)
    assert other.config.entropy_weight == 1.0  # each algorithm has its own section


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_an_auxiliary_learns_while_its_weight_is_not_zero(weight):
    entry = {"type": "inverse", "loss": by((0, 1 - weight), (0.5, weight))}
    algo = tiny_algo("bc", obs={"s": 2}, algo={"auxiliary": {"inv": entry}})
    algo.set_progress(0.7)
    algo.set_train()
    net = algo.nets["auxiliary/inv"]
    before = [value.clone() for value in net.parameters()]
    algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo)), 1)
    moved = any(not torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    assert moved is (weight > 0)


def test_named_rewards_and_a_constant_temperature_follow_schedules():
    section = {
        "rewards": {"task": {"weight": by((0, 1.0), (1, 3.0))}, "cost": {"source": "info:c"}},
        "temperature": {"tuned": False, "initial": by((0, 0.4), (1, 0.2))},
    }
    algo = tiny_algo("sac", obs={"s": 2}, algo=section)
    algo.set_progress(0.5)
    assert algo.nets["reward_weights"].weights().tolist() == [2.0, 1.0]
    assert algo.entropy.value.item() == pytest.approx(0.3)


def test_a_resumed_run_goes_through_the_same_values(tmp_path):
    section = {"alpha": by((0, 2.5), (0.5, 1.0), (0.5, 9.0)), "n_step": 1}
    words = {"algo": section, "train": {"num_epochs": 2}, "experiment": SAVED}
    data = tiny_demos(tmp_path / "demos.hdf5")
    whole = load_checkpoint(RunFolder(tiny_run(tmp_path / "a", "td3_bc", data=data, **words)).last)
    tree = tiny_tree("td3_bc", data=data, **words)
    paused = train(tree, output_dir=tmp_path / "b", until_epoch=1, quiet=True).run_dir
    alphas = [load_checkpoint(RunFolder(paused).last)["model"]["progress"]]
    train(resume=paused, quiet=True)
    again = load_checkpoint(RunFolder(paused).last)
    steps = again["train_state"]["step"]
    alphas.append(again["model"]["progress"])
    # An update has the progress of the steps before it.
    assert alphas == [(steps / 2 - 1) / steps, (steps - 1) / steps]
    for name, value in whole["model"]["nets"].items():
        assert torch.equal(value, again["model"]["nets"][name]), name
    policy = policy_from_checkpoint(ckpt_dict=again)[0]
    assert policy.algo.config.alpha == 9.0
