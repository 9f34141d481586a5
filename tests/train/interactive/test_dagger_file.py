"""Files of interactive imitation: finished rounds, what a round counted, and demonstrations as round 0."""

import dataclasses
import json
from types import SimpleNamespace as Words

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, Episode
from imitate.errors import ConfigError
from imitate.train.interactive.dagger import DaggerProgress, Round, RoundFiles, alike
from imitate.train.training_data import LABELLED
from tests.refusals import refused
from tests.tiny import tiny_config

META = {"env_name": "imitate.envs.worlds.tasks:SpeedLimit-v0", "type": 2, "env_kwargs": {}}
SETTINGS = {"label_every": 1, "ask_above": None, "seed": 1}


@pytest.fixture
def files(tmp_path):
    config = tiny_config("bc", obs={"s": 1})

    def make(labels_all=False, **settings):
        given = {**SETTINGS, **settings}
        return RoundFiles(tmp_path / "rounds", config, META, given, labels_all=labels_all)

    return make


def demos(path, count=3, terminal=True):
    """Demos of two steps, whose observations are 10 x the demo."""
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        group.attrs["env_args"] = json.dumps({**META, "env_kwargs": {"control_freq": 5}})
        group.attrs["total"] = 2 * count
        for number in range(count):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = 2
            demo.attrs["ep_meta"], demo.attrs["own"] = "{}", "x"
            demo["obs/s"] = np.full((2, 1), 10.0 * number)
            demo["actions"] = np.full((2, 1), 0.5)
            demo["states"] = np.ones((2, 4))
            if terminal:
                demo["terminals"] = np.array([0, number % 2])
                demo["rewards"] = np.array([0.0, 2.0])
    return path


def test_progress_is_kept_and_other_settings_are_refused(files):
    made = files()
    assert made.begun(None, None) == DaggerProgress([], 0)
    over = Round(1, 2, 30, 4, 50, None, 0.5, 2.0, "a.pth")
    made.save(DaggerProgress([Round(0, 3), over], 7))
    assert made.begun(None, None) == DaggerProgress([Round(0, 3), over], 0)
    assert made.recorded_before() == 5
    with refused("was begun with|'seed': 1|'seed': 2|use another folder", error=ConfigError):
        files(seed=2).begun(None, None)
    saved = json.loads((made.folder / "progress.json").read_text())
    for key in ("label_every", "ask_above"):  # folders of earlier versions lack them
        del saved["settings"][key]
    saved["rounds"][0]["more"] = 1
    (made.folder / "progress.json").write_text(json.dumps(saved))
    assert made.begun(None, None).rounds == [Round(0, 3), over]
    for key, value in (("label_every", 2), ("ask_above", 0.5)):
        with refused("was begun with", error=ConfigError):
            files(**{key: value}).begun(None, None)
    assert made.round_folder(3) == made.folder / "round_3"


@pytest.mark.parametrize(
    "saved", [{}, {"settings": 3, "rounds": []}, {"settings": {}, "rounds": [{"number": 0, "episodes": "2"}]},
              {"settings": {}, "rounds": [{}]}, []],
)  # fmt: skip
def test_what_is_no_progress_is_refused(files, saved):
    made = files()
    made.folder.mkdir()
    (made.folder / "progress.json").write_text(json.dumps(saved))
    with refused("is not a progress file: use another folder", error=ConfigError):
        made.begun(None, None)


def test_demonstrations_are_round_0_in_which_every_step_is_by_hand(files, tmp_path):
    made = files()
    made.begun(demos(tmp_path / "a.hdf5"), 2)
    with DatasetFile(made.demos) as file:
        assert file.demos() == ["demo_0", "demo_1"] and file.control_freq == 5.0
        assert [file.read(f"demo_{n}", "obs/s")[0, 0] for n in range(2)] == [0.0, 10.0]
        ends = [
            (file.read(d, "terminals").tolist(), file.read(d, "timeouts").tolist())
            for d in file.demos()
        ]
        assert ends == [([0, 0], [0, 1]), ([0, 1], [0, 0])]
        assert file.read("demo_0", "rewards").tolist() == [0.0, 2.0]
        for key in ("interventions", LABELLED):
            assert file.read("demo_0", key).tolist() == [1, 1]
        for key in ("actions", "policy_actions", "executed_actions"):
            assert file.read("demo_0", key).tolist() == [[0.5], [0.5]]
        assert file.read("demo_0", "round").tolist() == [0, 0]
        assert file.read("demo_0", "states").shape == (2, 4)
        attrs = file.attrs("demo_0")
        assert (attrs["round"], attrs["ep_meta"], "own" in attrs) == (0, "{}", False)
    assert made.counted(0) == Round(0, episodes=2, steps=4, interventions=4, labels=4)
    assert made.counted(1) == Round(1, labels=4)
    made.begun(demos(tmp_path / "b.hdf5", 3), None)  # the folder was begun
    assert made.counted(0).episodes == 2


def test_demonstrations_without_rewards_and_ends(files, tmp_path):
    made = files()
    made.begun(demos(tmp_path / "a.hdf5", terminal=False), None)
    with DatasetFile(made.demos) as file:
        assert len(file.demos()) == 3
        assert file.read("demo_1", "rewards").tolist() == [0.0, 0.0]
        assert file.read("demo_1", "terminals").tolist() == [0, 0]
        assert file.read("demo_1", "timeouts").tolist() == [0, 1]


def episode(number, by_hand, *, labels=None, success=None):
    count = len(by_hand)
    steps = {"interventions": np.array(by_hand, np.uint8), "round": np.full(count, number)}
    if labels is not None:
        steps[LABELLED] = np.array(labels, np.uint8)
    return Episode(
        obs={"s": np.zeros((count, 1))},
        actions=np.zeros((count, 1)),
        rewards=np.zeros(count),
        terminals=np.zeros(count),
        timeouts=np.arange(count) == count - 1,
        attrs={"round": number, **({} if success is None else {"success": success})},
        steps=steps,
    )


def test_rounds_are_counted(files):
    made = files()
    assert made.counted(1) == Round(1)
    made.begun(None, None)
    with made.appended() as writer:
        writer.append_episode(episode(1, [0, 1, 1], labels=[1, 1, 0], success=True))
        writer.append_episode(episode(1, [0, 0], labels=[0, 0], success=False))
    with made.appended() as writer:
        writer.append_episode(episode(2, [1, 1, 0, 0], labels=[1, 1, 1, 1], success=True))
    assert made.counted(1) == Round(1, 2, 5, 2, 6, 0.5)
    assert made.counted(2) == Round(2, 1, 4, 2, 6, 1.0)
    assert made.counted(3) == Round(3, labels=6)


def test_round_0_has_no_rate_of_success(files):
    made = files()
    made.begun(None, None)
    with made.appended() as writer:
        writer.append_episode(episode(0, [1, 1], labels=[1, 1], success=True))
    assert made.counted(0) == Round(0, 1, 2, 2, 2, None)


def test_observations_that_other_readers_would_misunderstand_are_recorded(files):
    made, given = files(), episode(1, [0, 1])
    made.begun(None, None)
    with made.appended() as writer:
        writer.append_episode(
            dataclasses.replace(given, obs={"front_image": np.zeros((2, 8, 8, 3))})
        )
    with DatasetFile(made.demos) as file:
        assert file.read("demo_0", "obs/front_image").dtype == np.float64


@pytest.mark.parametrize(("labels_all", "labels"), [(True, 5), (False, 2)])
def test_files_of_earlier_versions_have_no_labels(files, labels_all, labels):
    made = files(labels_all)
    made.begun(None, None)
    with made.appended() as writer:
        writer.append_episode(episode(1, [0, 1, 1]))
        writer.append_episode(episode(1, [0, 0]))
    assert made.counted(1).labels == labels


def test_episodes_of_a_file_have_the_same_arrays():
    given = episode(1, [0, 1], labels=[1, 1])
    assert alike(given, Words(arrays={})) is given
    assert alike(given, Words(arrays={LABELLED: 1})) is given
    assert set(alike(given, Words(arrays={"interventions": 1})).steps) == {"interventions", "round"}
