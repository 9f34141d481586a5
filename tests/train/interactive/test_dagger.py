"""Rounds on a point that is to go to its goal: one demonstration is not enough, corrected rollouts are."""

import dataclasses
import json
import os
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate import load_config
from imitate.crew import Lost
from imitate.data import DatasetFile, build_datasets
from imitate.errors import ConfigError, EnvError
from imitate.policy.checkpoint import control_freq_of, load_checkpoint
from imitate.train.interactive.dagger import DaggerPlan, dagger
from imitate.train.interactive.supervision import Item, Labels, TakesOver, Vigilant, _Waiting
from tests.train.conftest import config_dict, env_meta, write_demos, write_expert

PLAN = DaggerPlan(rounds=2, episodes=4, horizon=20, hold_steps=0, demos=1)
ONCE = dataclasses.replace(PLAN, rounds=1)
pytestmark = pytest.mark.usefixtures("importable_env")


def right(obs):
    return np.clip(4 * (obs["goal"] - obs["pos"]), -1, 1)


def config(**sections):
    return load_config(config_dict(**sections))


def longer():
    rate = {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}}
    return config(train={"num_epochs": 6}, algo=rate)


def labelled(number):
    return Labels(right, 0.5**number)


def held(number):
    return TakesOver(Vigilant(right, tolerance=0.3, patience=1))


def content(path):
    with h5py.File(path) as file:
        found = {}
        file["data"].visititems(
            lambda name, node: found.update({name: node[()]}) if hasattr(node, "shape") else None
        )
    return found


def assert_first_round(found, whole):
    """One folder has the demonstration and the four episodes of the first round of the other."""
    found, whole = content(found / "demos.hdf5"), content(whole / "demos.hdf5")
    assert {key.split("/")[0] for key in found} == {f"demo_{k}" for k in range(5)}
    for key, value in found.items():
        np.testing.assert_array_equal(value, whole[key], err_msg=key)


def error(checkpoint):
    """Mean distance of the learned actions from the right ones, all over the plane."""
    from imitate import policy_from_checkpoint

    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=checkpoint)
    rng = np.random.default_rng(1)
    obs = {"pos": rng.uniform(-0.5, 0.5, (200, 2)), "goal": rng.uniform(-0.5, 0.5, (200, 2))}
    policy.start_episode()
    return float(np.abs(policy(obs, batched_ob=True) - right(obs)).mean())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, importable_env):
    folder = tmp_path_factory.mktemp("dagger")
    demos = write_demos(folder / "demos.hdf5")
    progress = dagger(longer(), PLAN, labelled, env_meta(), folder / "out", dataset=demos)
    return demos, folder / "out", progress


def test_horizon_and_rate_reach_the_policies_and_the_best_by_validation_is_not_kept(
    tmp_path, importable_env
):
    demos = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["control_freq"] = 10.0
    saving = {"validate": True, "save": {"on_best_validation": True}}
    open_ = config(experiment={"rollout": {"horizon": None}, **saving}, train={"num_epochs": 1})
    plan = DaggerPlan(rounds=1, episodes=1, horizon=47)
    progress = dagger(open_, plan, labelled, env_meta(), tmp_path / "out", dataset=demos)
    for done in progress.rounds:
        ckpt = load_checkpoint(done.checkpoint)
        assert json.loads(ckpt["config"])["experiment"]["rollout"]["horizon"] == 47
        assert control_freq_of(ckpt) == 10.0
    assert not list(tmp_path.glob("out/**/best_valid.pth"))


def test_all_data_lie_in_one_file(finished):
    _, out, progress = finished
    with DatasetFile(out / "demos.hdf5") as file:
        rounds = [int(file.attrs(demo)["round"]) for demo in file.demos()]
        assert rounds == [0, 1, 1, 1, 1, 2, 2, 2, 2]
        for demo, number in zip(file.demos(), rounds, strict=True):
            assert (file.read(demo, "round") == number).all()
            obs = {key: file.read(demo, f"obs/{key}") for key in ("pos", "goal")}
            np.testing.assert_allclose(file.read(demo, "actions"), right(obs), atol=1e-6)
            by_hand = file.read(demo, "interventions") > 0
            done, wanted = file.read(demo, "executed_actions"), file.read(demo, "policy_actions")
            np.testing.assert_array_equal(done[by_hand], file.read(demo, "actions")[by_hand])
            np.testing.assert_array_equal(done[~by_hand], wanted[~by_hand])
            if number:  # what was done is what moved the point
                np.testing.assert_allclose(np.diff(obs["pos"], axis=0), 0.1 * done[:-1])
    assert [r.number for r in progress.rounds] == [0, 1, 2]
    assert [r.episodes for r in progress.rounds] == [1, 4, 4]
    assert progress.rounds[2].labels == sum(r.steps for r in progress.rounds)
    assert 0 < progress.rounds[1].interventions < progress.rounds[1].steps


def test_corrected_rollouts_mend_what_one_demonstration_left_open(finished):
    _, _, progress = finished
    first, *_, last = (error(r.checkpoint) for r in progress.rounds)
    assert last < 0.5 * first


def test_what_is_finished_is_not_done_again(finished, monkeypatch):
    demos, out, progress = finished
    monkeypatch.setattr("imitate.train.interactive.dagger.train", None)
    again = dagger(longer(), PLAN, labelled, env_meta(), out, dataset=demos)
    assert again == progress


def test_an_interrupted_round_goes_on_with_its_next_episode(finished, tmp_path):
    demos, out, progress = finished
    calls = []

    def interrupt(number, done):
        calls.append((number, done))
        if calls == [(1, 1), (1, 2)]:
            raise KeyboardInterrupt

    settings = (longer(), ONCE, labelled, env_meta(), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        dagger(*settings, dataset=demos, on_episode=interrupt)
    dagger(*settings, dataset=demos, on_episode=interrupt)
    assert calls == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert_first_round(tmp_path / "out", out)


def test_other_settings_are_refused(finished, tmp_path):
    demos, out, _ = finished
    with pytest.raises(ConfigError, match="use another folder"):
        dagger(config(), DaggerPlan(episodes=5), labelled, env_meta(), out, dataset=demos)
    with pytest.raises(ConfigError, match="--dataset"):
        dagger(config(), PLAN, labelled, env_meta(), tmp_path / "none")


def test_episodes_that_are_gone_are_noticed(finished, tmp_path):
    demos, out, _ = finished
    shutil.copytree(out, tmp_path / "out")
    with h5py.File(tmp_path / "out" / "demos.hdf5", "a") as file:
        del file["data/demo_8"]
    settings = (longer(), dataclasses.replace(PLAN, rounds=3), labelled, env_meta())
    with pytest.raises(ConfigError, match="has 8 episodes, but 9 were recorded"):
        dagger(*settings, tmp_path / "out", dataset=demos)


def test_after_a_take_over_only_the_steps_by_hand_count(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    policy = write_expert(tmp_path / "run" / "checkpoints" / "best.pth", gain=-1.0)
    plan = DaggerPlan(rounds=1, episodes=3, horizon=12)
    linear = config(algo={"actor_layer_dims": []})  # as its network is
    settings = (linear, plan, held, env_meta(), tmp_path / "out")
    progress = dagger(*settings, init=tmp_path / "run", labels_all=False)
    before, after = progress.rounds
    assert before.checkpoint == str(policy)
    assert 0 < after.interventions == after.labels < after.steps
    run = json.loads(next((tmp_path / "out" / "round_1").glob("*/*/config.json")).read_text())
    assert run["train"]["sample_weight"]["kind"] == "interventions"
    assert run["experiment"]["ckpt_path"] == str(policy)
    train_set, _ = build_datasets(load_config(run))
    by_hand = train_set.numbers.array("interventions").reshape(-1) > 0
    batch = train_set.__getitems__(list(range(len(train_set))))[0]
    weights = batch["weight"][:, 0].numpy()
    assert (weights[~by_hand] == 0).all()
    np.testing.assert_allclose(weights[by_hand], len(by_hand) / by_hand.sum(), rtol=1e-5)
    assert error(after.checkpoint) < error(policy)


@pytest.mark.slow("trains three times")
def test_only_labelled_steps_are_learned_from(tmp_path):
    plan = dataclasses.replace(PLAN, label_every=4)
    demos = write_demos(tmp_path / "demos.hdf5")
    settings = (longer(), plan, lambda number: Labels(right, 0.0, every=4), env_meta())
    progress = dagger(*settings, tmp_path / "out", dataset=demos)
    first, *_, last = progress.rounds
    with DatasetFile(tmp_path / "out" / "demos.hdf5") as file:
        counts = [-(-file.length(demo) // 4) for demo in file.demos()[1:]]
    assert last.labels == first.steps + sum(counts)
    run = json.loads(next((tmp_path / "out" / "round_2").glob("*/*/config.json")).read_text())
    train_set, _ = build_datasets(load_config(run))
    labelled_steps = train_set.numbers.array("labelled").reshape(-1) > 0
    weights = train_set.__getitems__(list(range(len(train_set))))[0]["weight"][:, 0].numpy()
    np.testing.assert_array_equal(weights > 0, labelled_steps)
    # What the policy did where nobody was asked is wrong, and not learned.
    assert error(last.checkpoint) < 0.7 * error(first.checkpoint)


def test_weights_of_ones_own_and_steps_without_labels_contradict_each_other(finished, tmp_path):
    demos, _, _ = finished
    weighted = config(train={"sample_weight": {"kind": "return"}})
    plan = dataclasses.replace(PLAN, label_every=4)
    with pytest.raises(ConfigError, match="train.sample_weight.kind: 'return'"):
        dagger(weighted, plan, labelled, env_meta(), tmp_path / "out", dataset=demos)


def test_a_folder_from_before_labels_were_recorded_goes_on(finished, tmp_path):
    demos, out, progress = finished
    shutil.copytree(out, tmp_path / "out")
    with h5py.File(tmp_path / "out" / "demos.hdf5", "a") as file:
        for demo in file["data"].values():
            del demo["labelled"]
    saved = json.loads((tmp_path / "out" / "progress.json").read_text())
    del saved["settings"]["label_every"]
    (tmp_path / "out" / "progress.json").write_text(json.dumps(saved))
    more = dataclasses.replace(PLAN, rounds=3)
    settings = (longer(), more, labelled, env_meta(), tmp_path / "out")
    after = dagger(*settings, dataset=demos)
    assert after.rounds[:3] == progress.rounds
    assert after.rounds[3].labels == sum(r.steps for r in after.rounds)


@dataclasses.dataclass(frozen=True)
class LabelledBy:
    """Supervision that workers can be sent."""

    kills: str = ""

    def __call__(self, number):
        return Labels(self.expert, 0.5**number)

    def expert(self, obs):
        if self.kills:
            _die_once(self.kills)
        return right(obs)


def _die_once(folder):
    """Kill this process at the 30th call, unless that was done before."""
    with suppress(FileExistsError):
        calls = Path(folder, f"calls-{os.getpid()}")
        count = int(calls.read_text()) + 1 if calls.exists() else 1
        calls.write_text(str(count))
        if count == 30:
            Path(folder, "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow("two workers play what one process played, and one is killed")
def test_workers_play_the_same_episodes_also_when_one_is_killed(finished, tmp_path):
    demos, out, progress = finished
    settings = (longer(), ONCE, LabelledBy(str(tmp_path)), env_meta(), tmp_path / "out")
    by_workers = dagger(*settings, dataset=demos, workers=2)
    assert (tmp_path / "killed").exists()
    assert_first_round(tmp_path / "out", out)
    assert by_workers.rounds[1].interventions == progress.rounds[1].interventions
    assert by_workers.rounds[1].rollout_success == progress.rounds[1].rollout_success


@pytest.mark.ray
@pytest.mark.nightly
def test_workers_on_a_cluster_play_the_same_episodes(finished, tmp_path, ray_nodes):
    demos, out, progress = finished
    settings = (longer(), ONCE, LabelledBy(), env_meta(), tmp_path / "out")
    there = dagger(*settings, dataset=demos, workers=2, on=ray_nodes.on)
    assert_first_round(tmp_path / "out", out)
    assert there.rounds[1].rollout_success == progress.rounds[1].rollout_success


def test_an_episode_that_is_lost_is_played_with_other_seeds():
    waiting = _Waiting(partial(Item, 1, policy=None, states=False), first=2, last=5, ahead=2)
    assert [item.index for item in waiting] == [2, 3]  # no further ahead than that
    lost = Lost("its process died", died=True)
    item = Item(1, 2, None, False)
    waiting.again(item, lost, "Point")
    again = next(waiting)
    assert (again.index, again.attempt) == (2, 1)
    waiting.wanted = 3
    assert [item.index for item in waiting] == [4]
    with pytest.raises(EnvError, match="Point: round 1, episode 2: its process died"):
        waiting.again(dataclasses.replace(item, attempt=9), lost, "Point")
    with pytest.raises(EnvError, match="it raised"):
        waiting.again(item, Lost("it raised"), "Point")


def test_people_and_robots_stay_in_this_process(finished, tmp_path):
    demos, _, _ = finished
    settings = (config(), PLAN, lambda number: held(number), env_meta(), tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot be sent to workers"):
        dagger(*settings, dataset=demos, workers=2)
    assert not (tmp_path / "out").exists()
