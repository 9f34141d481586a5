"""Whole trainings in an environment, small ones: from nothing, from demonstrations, from a policy."""

import io
import json
import os
import shutil
import signal
import sys
import zipfile

import numpy as np
import pytest
import torch

from imitate import load_config, policy_from_checkpoint
from imitate.algo.sac import SAC
from imitate.data.dataset_file import DatasetFile
from imitate.errors import MissingPackageError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.train.online.demonstrations import write_demonstrations
from imitate.train.online.parts import make_learner
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.setup import build_online
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import merged, tiny_tree

from .conftest import PENDULUM, assert_same_nets, last, online_tree, records, resume, stored_steps

NIGHTLY = pytest.mark.nightly


EPOCH = 50
"""Steps of an epoch, of an episode and before the first update."""


def run(tmp_path, *args, quiet=True, **kwargs):
    usual = {
        "experiment": {
            **{"epoch_every_n_steps": EPOCH, "rollout": {"horizon": EPOCH}},
            "save": {"on_best_rollout_return": True},
        },
        "online": {"warmup_steps": EPOCH},
    }
    tree = online_tree(*args, **merged(usual, kwargs))
    return train(tree, output_dir=tmp_path, quiet=quiet)


def live(result):
    """Number of steps in the replay buffer."""
    return int(stored_steps(result)["rows"]["live"].sum())


def last_path(result):
    return result.run_dir / "checkpoints/last.pth"


def test_a_run_leaves_what_every_run_leaves(tmp_path):
    result = run(tmp_path, experiment={"rollout": {"enabled": True}})
    assert result.exit_code == 0
    numbers = records(result)[-1]
    assert numbers["Metrics/EnvironmentSteps"] == 150 and numbers["Metrics/NumberOfEpisodes"] == 3
    assert numbers["Train/Updates"] == 20 and numbers["Metrics/AverageEpisodeLength"] == EPOCH
    assert numbers["Metrics/AverageReturn"] == pytest.approx(
        EPOCH * numbers["Metrics/AverageReward"]
    )
    assert len(records(result, "rollout")) == 3
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=last_path(result))
    assert ckpt["env_metadata"]["env_name"] == "Pendulum-v1"
    assert ckpt["shape_metadata"]["action_high"] == [2.0]
    policy.start_episode()
    assert abs(policy({"flat": np.array([1.0, 0.0, 0.0])})[0]) <= 2.0
    evaluated = evaluate(last_path(result), settings=EvalSettings(episodes=2, seed=100000))
    assert evaluated.mean_return == pytest.approx(records(result, "rollout")[-1]["Rollout/Return"])


MODEL = {"dynamics": {"members": 2, "layer_dims": [8]}}
FEW_UPDATES = {"warmup_steps": 60, "update_ratio": 0.25}
PLANNER = {"horizon": 3, "population": 8, "elites": 2, "iterations": 2}
NORMALIZED = {"obs_normalization": "mean_std", "obs_clip": 1.5}
ON_POLICY = {
    "train": {**NORMALIZED, "reward": {"normalization": "running"}},
    "online": {"collect_steps": EPOCH, "num_envs": 2, "warmup_steps": 0},
    "experiment": {"epoch_every_n_steps": 2 * EPOCH},
    "algo": {"rollout_epochs": 2},
}


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        pytest.param("sac", {}, marks=NIGHTLY),
        ("sac", {"algo": {**MODEL, "imagination": {"start_updates": 5}}, "online": FEW_UPDATES}),
        pytest.param("mbrl", {"algo": {**MODEL, "planner": PLANNER}}, marks=NIGHTLY),
        pytest.param("td3", {"train": {"obs_normalization": "mean_std"}}, marks=NIGHTLY),
        ("ppo", ON_POLICY),
        ("taac", {"algo": {"form": "linear"}, "train": {"seq_length": 4}}),
        ("ppg", merged(ON_POLICY, {"algo": {"interval": 2}})),
    ],
)
def test_a_resumed_run_ends_bit_equal(tmp_path, name, sections):
    def of_epochs(number):
        keys = {**sections.get("train", {}), "num_epochs": number}
        return run(tmp_path, name, **{**sections, "train": keys})

    whole, resumed = of_epochs(2), resume(of_epochs(1), 2)
    assert_same_nets(whole, resumed)
    first, second = last(whole), last(resumed)
    assert first["train_state"]["step"] == second["train_state"]["step"]
    for key, value in first["preprocess"]["obs"]["flat"].items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda *_: True
        assert same(value, second["preprocess"]["obs"]["flat"][key])
    clip = sections.get("train", {}).get("obs_clip")
    assert first["preprocess"]["obs_clip"] == second["preprocess"]["obs_clip"] == clip
    same = ("Metrics/AverageReturn", "Train/Updates", "Train/Loss")
    assert [records(whole)[-1][k] for k in same] == [records(resumed)[-1][k] for k in same]


def test_in_the_middle_of_an_episode_nothing_that_was_remembered_is_lost(tmp_path):
    part = run(tmp_path, experiment={"epoch_every_n_steps": 35}, train={"num_epochs": 2})
    saved = stored_steps(part)
    assert int(saved["rows"]["live"].sum()) == 70
    resumed = resume(part, 3)
    assert live(resumed) == 105
    vectors = stored_steps(resumed)["rows"]["vectors"]
    assert torch.equal(vectors[:EPOCH], saved["rows"]["vectors"][:EPOCH])


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    return run(tmp_path_factory.mktemp("two"), train={"num_epochs": 2}).run_dir


@pytest.fixture
def part(two_epochs, tmp_path):
    """A copy of a run of two epochs."""
    return shutil.copytree(two_epochs, tmp_path / "part")


def test_a_clock_that_jumps_loses_no_replay_buffer(part):
    for file in (part / "checkpoints").glob("memory_*.pt"):
        os.utime(file, (4e9, 4e9))  # written before the clock was set back
    assert live(resume(part, 3)) == 150
    names = {file.name for file in (part / "checkpoints").glob("memory_*.pt")}
    assert names == {"memory_100.pt", "memory_150.pt"}


def flipped(content):
    """One bit of the longest entry of an archive, the stored steps."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        longest = max(archive.infolist(), key=lambda entry: entry.file_size)
    middle = longest.header_offset + longest.file_size // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda file: file.unlink(), "is gone"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "is damaged (OSError: it is not a regular"),
        (lambda file: file.write_bytes(flipped(file.read_bytes())), "is damaged"),
    ],
)
def test_a_replay_buffer_that_cannot_be_read_is_told_and_fills_anew(part, harm, words):
    harm(part / "checkpoints/memory_100.pt")
    said = io.StringIO()
    resumed = resume(part, 3, stream=said)
    (line,) = [line for line in said.getvalue().splitlines() if "memory_100.pt" in line]
    assert words in line and "empty replay buffer" in line
    assert live(resumed) == EPOCH
    assert records(resumed)[-1]["Train/Updates"] == 20


WORKER = {"num_envs": 2, "num_workers": 1, "collect_steps": 10}


def test_workers_collect(tmp_path):
    online = {**WORKER, "max_staleness": 5}
    numbers = records(run(tmp_path, online=online, train={"num_epochs": 1}))[-1]
    assert numbers["Metrics/EnvironmentSteps"] >= EPOCH and numbers["Metrics/Staleness"] <= 5


@pytest.mark.slow("two workers start")
def test_a2c_learns_from_rollouts_of_earlier_weights(tmp_path):
    online = {"num_envs": 2, "num_workers": 2, "collect_steps": 10, "warmup_steps": 0}
    words = {"train": {"num_epochs": 4, "batch_size": 10}, "algo": {"vtrace": True}}
    with pytest.raises(Exception, match="max_staleness: 1, but rollouts of all workers give 2 upd"):
        run(tmp_path, "a2c", online={**online, "max_staleness": 1}, **words)
    numbers = records(run(tmp_path, "a2c", online={**online, "max_staleness": 4}, **words))[-1]
    # the workers begin their next rollouts before the update of the last one, and after the other's
    assert 1 <= numbers["Metrics/Staleness"] <= 4
    assert numbers["Train/Updates"] >= numbers["Metrics/EnvironmentSteps"] / 10 - 2


@pytest.mark.slow("workers of two kinds start, twice")
def test_policy_workers_act_and_a_run_resumes(tmp_path):
    online = {"acting": "central", "ring": 2, "warmup_steps": 4, **WORKER}
    result = run(tmp_path, online=online, train={"num_epochs": 1})
    numbers = records(result)[-1]
    assert numbers["Metrics/EnvironmentSteps"] >= EPOCH and 1 <= numbers["Metrics/ActingBatch"] <= 2
    config = json.loads((result.run_dir / "config.json").read_text())
    resumed = train(config, resume=result.run_dir, overrides=("train.num_epochs=2",))
    assert records(resumed)[-1]["Metrics/EnvironmentSteps"] >= 2 * EPOCH


@pytest.mark.parametrize(
    ("env", "choices", "continuous"),
    [("Pendulum-v1", 0, 1), ("CartPole-v1", 2, 0), ("tools:Tools-v0", 2, 1)],
)
def test_sac_takes_actions_of_every_kind(tmp_path, importable_env, env, choices, continuous):
    rollout, online = {"rollout": {"enabled": True}}, {"warmup_steps": 20}
    result = run(tmp_path, env=env, experiment=rollout, train={"num_epochs": 1}, online=online)
    algo = json.loads(last(result)["config"])["algo"]
    assert (algo["num_choices"], algo["num_continuous"]) == (choices, continuous)
    evaluated = evaluate(last_path(result), settings=EvalSettings(episodes=2, seed=100000))
    assert evaluated.mean_return == pytest.approx(records(result, "rollout")[-1]["Rollout/Return"])


RATE = {"learning_rate": {"initial": 0.01}}
TOOLS = {
    "experiment": {"epoch_every_n_steps": 200, "rollout": {"enabled": True, "n": 20}},
    "train": {"batch_size": 64, "num_epochs": 2},
    "online": {"warmup_steps": 100, "update_ratio": 0.7},
    "algo": {
        **{"actor": {"layer_dims": [32]}, "critic": {"layer_dims": [32]}, "discount": 0.0},
        "temperature": {"initial": 0.05},
        "optim_params": {"actor": RATE, "critic": RATE},
    },
}


@pytest.mark.slow("trains until it has learned")
def test_a_choice_and_the_number_that_goes_with_it_are_learned(tmp_path, importable_env):
    """Of five steps a policy that chooses at random has 0 at best, one that always puts tools in the middle too."""
    result = run(tmp_path, env="tools:Tools-v0", **TOOLS)
    assert records(result, "rollout")[-1]["Rollout/Return"] > 3.5


@NIGHTLY
def test_mixed_actions_resume_and_come_from_workers(tmp_path, importable_env):
    whole = run(tmp_path, env="tools:Tools-v0", online=FEW_UPDATES)
    part = run(tmp_path, env="tools:Tools-v0", train={"num_epochs": 2}, online=FEW_UPDATES)
    assert_same_nets(whole, resume(part, 3))
    result = run(tmp_path, env="tools:Tools-v0", train={"num_epochs": 1}, online=WORKER)
    assert records(result)[-1]["Metrics/NumberOfEpisodes"] >= 10


@pytest.fixture
def demonstrations(tmp_path):
    """An episode of Pendulum as a file."""
    memory = ReplayBuffer({"flat": (3,)}, 1, 1000)
    first = run(tmp_path, train={"num_epochs": 1}, online={"buffer_size": 1000})
    memory.load_state_dict(stored_steps(first))
    write_demonstrations(memory, tmp_path / "demos.hdf5", last(first)["env_metadata"])
    with DatasetFile(tmp_path / "demos.hdf5") as demos:
        assert demos.env_meta["env_name"] == "Pendulum-v1" and demos.length("demo_0") == EPOCH
    return tmp_path / "demos.hdf5"


def on_demonstrations(tmp_path, data, num_epochs, quiet=True):
    online = {"env": None, "demo_ratio": 0.5, "pretrain_updates": 7}
    keys = {"data": str(data), "num_epochs": num_epochs}
    return run(tmp_path, online=online, train=keys, quiet=quiet)


def test_demonstrations_and_online_steps_share_a_batch(
    tmp_path, demonstrations, monkeypatch, capsys
):
    """The updates before the first step are counted and shown."""
    monkeypatch.setattr("imitate.train.console.HEARTBEAT_S", 0.0)
    result = on_demonstrations(tmp_path, demonstrations, 2, quiet=False)
    assert records(result)[-1]["Train/Updates"] == 7 + 10
    shown = [line for line in capsys.readouterr().err.splitlines() if "alone, before" in line]
    assert shown[0].startswith("update 0/7 from demonstrations")
    assert len(shown) == 7


@pytest.mark.parametrize(
    ("name", "section", "seq_length"),
    [
        ("sac", {"rnn": {"enabled": True, "hidden_dim": 4, "burn_in": 2}}, 4),
        (
            "tdmpc2",
            {
                **{"planner": PLANNER, "policy_plans": 2, "latent_dim": 16},
                **{"weights": {"cloning": 10.0}, "near": {"share": 0.5}},
            },
            1,
        ),
    ],
)
def test_windows_come_from_demonstrations_and_by_priority(
    tmp_path, demonstrations, name, section, seq_length
):
    """A memory's sequences and a model's windows: first demonstrations alone, then both, resumed bit-equal."""

    def of_epochs(number):
        online = {"env": None, "demo_ratio": 0.5, "pretrain_updates": 3, "warmup_steps": EPOCH}
        online |= {"prioritized": {"enabled": True}, "update_ratio": 0.125}
        keys = {"data": str(demonstrations), "num_epochs": number, "seq_length": seq_length}
        return run(tmp_path, name, algo=section, online=online, train=keys)

    whole = of_epochs(2)
    assert records(whole)[-1]["Train/Updates"] == 3 + 6
    assert_same_nets(whole, resume(of_epochs(1), 2))
    priorities = stored_steps(whole)["rows"]["priority"]
    assert len(priorities[priorities > 0].unique()) > 5


@pytest.mark.parametrize(("warmup", "warned"), [(2 * EPOCH, True), (EPOCH, False)])
def test_a_run_that_ends_within_its_warm_up_says_so(tmp_path, warmup, warned):
    result = run(tmp_path, online={"warmup_steps": warmup}, train={"num_epochs": 2})
    log = (result.run_dir / "log.txt").read_text()
    words = (
        "nothing is learned: the training has 100 environment steps, but updates begin after 100 "
    )
    assert (words in log) is warned
    assert (
        "Train/Updates" in records(result)[-1] and records(result)[-1]["Train/Updates"] > 0
    ) is not warned


def test_a_run_that_is_interrupted_before_the_first_step_loses_no_update(
    tmp_path, demonstrations, monkeypatch
):
    whole = on_demonstrations(tmp_path, demonstrations, 1)
    updates, update = [], SAC.train_on_batch

    def interrupted(self, batch, epoch, validate=False):
        updates.append(epoch)
        if len(updates) == 3:
            signal.raise_signal(signal.SIGTERM)
        return update(self, batch, epoch, validate)

    monkeypatch.setattr(SAC, "train_on_batch", interrupted)
    cut = on_demonstrations(tmp_path, demonstrations, 1)
    assert cut.exit_code == 143 and len(updates) == 3
    train(resume=cut.run_dir, quiet=True)
    assert len(updates) == 7
    assert_same_nets(whole, cut)


TWO_FOR_ONE = {"num_envs": 2, "num_workers": 1, "policy_workers": 2, "acting": "central"}
ODD = {"num_envs": 3, "num_workers": 2, "ring": 2, "acting": "central"}


@pytest.mark.parametrize(
    ("online", "words"),
    [
        ({"env": None}, "train.online.env: is null"),
        ({"demo_ratio": 0.5}, "need demonstrations"),
        ({"num_workers": 2}, "2 processes for 1 environments"),
        ({"max_staleness": 2}, "needs num_workers of 1 or more"),
        ({"num_workers": 1, "max_staleness": 0}, "max_staleness: 0 allows no update"),
        ({"acting": "central"}, "'central' needs environment workers"),
        ({"ring": 2}, "ring: 2 needs train.online.acting 'central'"),
        ({"policy_workers": 2}, "policy_workers: 2 needs train.online"),
        (TWO_FOR_ONE, "2 for 1 environment workers"),
        (ODD, "need 4 environments, got .* 3"),
        ({**WORKER, "push_every_s": 2.5}, "push_every_s: 2.5, .*set max_stal"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path, online, words):
    with pytest.raises(Exception, match=words) as caught:
        run(tmp_path, online=online)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ("ppo/ppo_cartpole", "num_choices=3", "3, but CartPole-v1 has 2"),
        ("dqn/dqn_cartpole", "num_choices=4", "4, but CartPole-v1 has 2"),
        ("sac/sac_pendulum", "num_continuous=2", "2, but Pendulum-v1 has 1"),
    ],
)
def test_a_number_of_choices_that_the_environment_does_not_have_is_refused(
    call, tmp_path, config, key, words
):
    told = call(f"train --config {config} --set algo.{key}", code=2).stderr
    assert f"algo.{key.partition('=')[0]}: {words}" in told and told.count("\n") == 1
    assert not list(tmp_path.rglob("config.json"))


def test_a_package_that_central_acting_lacks_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("imitate.train.online.central.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "imitate.system.channel.messages", raising=False)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with refused("'central': the package 'msgpack' |pip install", error=MissingPackageError):
        run(tmp_path, online={"acting": "central", **WORKER})


BY_STD = {"train": {"reward": {"normalization": "std"}}}
NO_STEPS = {"experiment": {"epoch_every_n_steps": None}}


@pytest.mark.parametrize(
    ("name", "sections", "words"),
    [
        ("sac", NO_STEPS, "environment steps of an epoch"),
        ("sac", BY_STD, "not to a replay buffer: add --set train.reward.normalization=null"),
        ("sac", {"obs": ["flaat"]}, "flaat"),
        ("td3", {"env": "CartPole-v1"}, "td3 needs continuous actions, but CartPole-v1"),
        (
            "dqn",
            {"env": "tools:Tools-v0"},
            "needs either discrete or continuous actions, but .* one of 2 choices and 1",
        ),
        (
            "dqn",
            {"obs": ["flaat"]},
            "dqn chooses among discrete actions, but .* take sac or td3, as in",
        ),
        ("td3", {"env": "tools:Tools-v0"}, "needs continuous .* takes one of 2 choices: choose"),
        ("residual", {}, "algo.base.checkpoint: is null, but residual builds upon a policy"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, importable_env, name, sections, words):
    with pytest.raises(Exception, match=words) as caught:
        run(tmp_path, name, **sections)
    assert "\n" not in str(caught.value)


# ---- from a checkpoint of offline learning: nothing is forgotten on the way ----------------------

FINE_TUNING = [
    *("train.online.enabled=true", "train.online.warmup_steps=20"),
    *("train.online.warmup_policy=policy", "train.online.update_ratio=0.5"),
    *("train.num_epochs=1", "experiment.epoch_every_n_steps=60", "experiment.rollout.horizon=25"),
]


@pytest.fixture(scope="module")
def swings(tmp_path_factory):
    """Aimless swings of a pendulum whose velocity is mostly 5."""
    rng = np.random.default_rng(0)

    def swing():
        angle, speed = rng.uniform(-3, 3, 16), rng.normal(5, 2, 16)
        flat = np.column_stack([np.cos(angle), np.sin(angle), speed]).astype(np.float32)
        values = {"next_obs": {"flat": flat[1:]}, "rewards": -np.abs(angle[:-1])}
        return episode(15, {"flat": flat[:-1]}, rng.uniform(-1, 1, (15, 1)), "timeout", **values)

    path = tmp_path_factory.mktemp("data") / "demos.hdf5"
    return write_demos(path, [swing() for _ in range(4)], PENDULUM)


@pytest.mark.parametrize(
    ("name", "demo_ratio"), [("iql", 0), ("cal_ql", 0.5), pytest.param("td3_bc", 0, marks=NIGHTLY)]
)
def test_a_checkpoint_learns_online_from_where_it_stands(tmp_path, swings, name, demo_ratio):
    keys = {"num_epochs": 1, "batch_size": 8, "obs_normalization": "mean_std"}
    short = {"epoch_every_n_steps": 5}
    tree = tiny_tree(name, obs={"flat": 3}, data=swings, experiment=short, train=keys)
    path = last_path(train(tree, output_dir=tmp_path, quiet=True))
    (policy, ckpt) = policy_from_checkpoint(device="cpu", ckpt_path=path)
    base = [f"train.online.demo_ratio={demo_ratio}", f"experiment.ckpt_path={path}"]

    # As it begins, after everything that online RL prepares, it acts as the checkpoint does.
    setup = build_online(load_config(ckpt["config"], FINE_TUNING + base), torch.device("cpu"))
    make_learner(setup)
    setup.algo.set_eval()
    for velocity in (-3.0, 5.0):
        obs = {"flat": np.array([0.6, 0.8, velocity])}
        prepared = setup.algo.preprocess.prepare_obs({"flat": obs["flat"][None]})
        setup.algo.reset()
        action = setup.algo.preprocess.unnormalize_actions(setup.algo.get_action(prepared))
        np.testing.assert_allclose(action[0], policy(obs), atol=1e-6)

    overrides = FINE_TUNING + base
    result = train(ckpt["config"], output_dir=tmp_path, overrides=overrides, quiet=True)
    (numbers,) = records(result)
    assert numbers["Metrics/EnvironmentSteps"] == 60 and numbers["Train/Updates"] == 20
    assert np.isfinite(numbers["Train/Loss"])
    now = last(result)
    for key, value in ckpt["model"]["nets"].items():
        assert not torch.equal(value, now["model"]["nets"][key]), key
    for key in ("offset", "scale"):
        was, found = (c["preprocess"]["obs"]["flat"][key] for c in (ckpt, now))
        assert torch.equal(was, found) and not torch.equal(was, torch.zeros(3))


# ---- upon a frozen policy ------------------------------------------------------------------------

SHORT = {"epoch_every_n_steps": 100, "rollout": {"horizon": 50}}


def upon(name, path, **online):
    online = {"warmup_steps": 50, "warmup_policy": "policy", "update_ratio": 0.1, **online}
    algo = {"base": {"checkpoint": str(path)}}
    experiment = {**SHORT, "epoch_every_n_steps": 60}
    return online_tree(
        name, experiment=experiment, algo=algo, train={"num_epochs": 1}, online=online
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A policy of Pendulum, of another algorithm."""
    keys = {"num_epochs": 1, "obs_normalization": "mean_std"}
    return last_path(run(tmp_path_factory.mktemp("base"), "td3", train=keys))


def actions(path):
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
    return [policy({"flat": np.array(x)})[0] for x in ([1.0, 0.0, 3.0], [-0.6, 0.8, -1.0])]


@pytest.mark.slow("three trainings, of which two start a worker")
@pytest.mark.parametrize(("name", "workers"), [("residual", 0), ("ibrl", 1)])
def test_it_learns_online_and_its_checkpoint_is_whole(tmp_path, base, name, workers):
    path = tmp_path / "moved.pth"
    path.write_bytes(base.read_bytes())
    # Until something is learned, it is the frozen policy, here that of a run folder.
    folder = base.parents[1]
    untaught = train(upon(name, folder, warmup_steps=100), output_dir=tmp_path / "a", quiet=True)
    assert actions(last_path(untaught)) == pytest.approx(actions(base), abs=1e-5)
    config = upon(name, path, num_workers=workers, collect_steps=10)
    config["train"]["num_epochs"] = 2
    result = train(config, output_dir=tmp_path, quiet=True)
    path.unlink()
    assert len(actions(last_path(result))) == 2
    assert resume(result, 3).exit_code == 0


def test_ppo_learns_beside_it(tmp_path, base):
    online = {"num_envs": 2, "num_workers": 1, "collect_steps": 50, "warmup_steps": 0}
    algo = {"base": {"checkpoint": str(base)}, "rollout_epochs": 1, "imitation": {"decay": 0.5}}
    words = {"experiment": SHORT, "train": {"num_epochs": 2}, "online": online, "algo": algo}
    result = run(tmp_path, "ppo_bc", **words)
    assert [record["Train/Imitation_Weight"] for record in records(result)] == [1.0, 0.5]
    assert len(actions(last_path(result))) == 2
