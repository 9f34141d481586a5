"""Setup of a run: windows for statistics, numbers in place of null, evaluations that cannot be."""

from dataclasses import dataclass
from importlib import metadata
from types import SimpleNamespace as Words

import numpy as np
import pytest
import torch

from imitate.config import load_config
from imitate.errors import CheckpointError, ConfigError
from imitate.system.run_folder import RunFolder
from imitate.train import setup as module
from imitate.train.resume import check_same_data, restored, resumed_config, resuming
from imitate.train.setup import (
    build,
    load_overridden,
    observation_statistics,
    package_versions,
    resolve,
    samples_of,
    without_real_robots,
)
from tests.refusals import refused
from tests.tiny import tiny_demos, tiny_tree


class Windows:
    """Windows of three steps, whose values are their number; notes which are read."""

    window_steps = 3

    def __init__(self, count, image):
        self.count, self.read = count, []
        self.obs_shapes = {"s": (1,), "cam": (2, 2, 3) if image else (1,)}

    def __len__(self):
        return self.count

    def windows(self, rows, keys):
        self.read.append(len(rows))
        values = np.stack([rows, rows + 0.5, rows + 0.75], 1)[:, :, None]
        return {
            "obs": dict.fromkeys(keys, values),
            "actions": values,
            "pad_mask": values[..., 0] > -1,
        }


@pytest.mark.parametrize(
    ("count", "image", "read"),
    [
        (25_000, False, 20_000),
        (900, False, 900),
        (900, True, 333),  # a thousand images
        (5, True, 5),
    ],
)
def test_windows_are_spread_evenly_and_few_where_they_have_images(count, image, read):
    data = Windows(count, image)
    algo = Words(frame_stack=2, execution=None)
    samples = list(samples_of(data, algo, ("s", "cam")))
    assert sum(data.read) == read and max(data.read) <= 256
    assert len(data.read) == -(-read // 256)
    first, last = samples[0], samples[-1]
    assert (first[0]["s"][0, 0, 0], last[0]["s"][-1, 0, 0]) == (0, count - 1)


def test_actions_are_relative_to_their_step_or_to_the_beginning_of_their_chunk():
    (each,) = samples_of(Windows(4, False), Words(frame_stack=2, execution=None), ("s",))
    assert each[1].shape == each[2]["s"].shape == (4, 3, 1) and each[3].shape == (4, 3)
    (chunk,) = samples_of(Windows(4, False), Words(frame_stack=2, execution="chunk"), ("s",))
    assert chunk[1][1, :, 0].tolist() == [1.5, 1.75] and chunk[3].shape == (4, 2)
    assert chunk[2]["s"][1].tolist() == [1.5] and chunk[0]["s"].shape == (4, 3, 1)


@pytest.fixture
def data(tmp_path):
    return tiny_demos(tmp_path / "a.hdf5", {"s": 3}, num_demos=4, length=10)


def config(data, *, experiment=None, **train):
    words = {"batch_size": 12, "num_epochs": 2, **train}
    more = {"epoch_every_n_steps": None, "rollout": {"horizon": None}, **(experiment or {})}
    return load_config(tiny_tree("bc", obs={"s": 3}, data=data, train=words, experiment=more))


@pytest.mark.parametrize(("size", "steps"), [(12, 3), (40, 1), (41, 1)])
def test_numbers_in_place_of_null(data, size, steps):
    setup = build(config(data, batch_size=size), torch.device("cpu"))
    assert setup.config.experiment.epoch_every_n_steps == steps
    assert setup.config.experiment.rollout.horizon == 20
    assert setup.valid_set is None
    many = build(config(data, batch_size=size, num_epochs=None), torch.device("cpu")).config
    assert many.train.num_epochs == -(-1000 // steps)  # at least 1,000 updates
    given = config(data, experiment={"epoch_every_n_steps": 7, "rollout": {"horizon": 9}})
    kept = build(given, torch.device("cpu")).config.experiment
    assert (kept.epoch_every_n_steps, kept.rollout.horizon) == (7, 9)


def test_what_a_setup_records(data):
    setup = build(resolve(config(data), None, None), torch.device("cpu"))
    shapes = setup.shape_metadata
    assert (shapes["raw_shapes"], shapes["longest_demo"]) == ({"s": [3]}, 10)
    (entry,) = setup.provenance["datasets"]
    assert entry["training_demos"] == 4 and not {"eval", "key"} & set(entry)
    assert len(entry["demos_sha256"]) == 64
    assert set(setup.provenance["observations"]) == {"s"}
    assert set(setup.provenance["packages"]) <= set(package_versions())
    assert setup.training_data.observations == {"s": [3]} and setup.language_words == ()
    assert setup.storage_words == tuple(setup.train_set.storage_words)


def test_statistics_of_vectors_and_colours():
    shapes = {"s": (2,), "cam": (4, 4, 3), "deep": (4, 4, 1), "grid": (3, 2), "new": (1,)}
    stats = {
        key: Words(
            mean=np.array([[1.0], [2.0]]), std=np.ones(2), min=np.zeros(2), max=np.full(2, 5.0)
        )
        for key in ("s", "cam", "deep", "grid")
    }
    asked = []
    given = Words(
        obs_shapes=shapes,
        statistics=lambda max_images: asked.append(max_images) or {"obs": stats},
        first_values={"s": np.array([[0.0, 3.0], [1.0, 2.0]]), "cam": None}.get,
    )
    found = observation_statistics(given)
    numbers = {"mean": [1.0, 2.0], "std": [1.0, 1.0], "min": [0.0, 0.0], "max": [5.0, 5.0]}
    first = {"first_min": [0.0, 2.0], "first_max": [1.0, 3.0]}
    assert found == {"s": {**numbers, **first}, "cam": numbers} and asked == [100]


@dataclass(frozen=True)
class Made:
    config: object
    env_metas: list


@pytest.mark.parametrize(
    ("metas", "enabled", "line"),
    [
        ([{"type": 2}], True, None),
        ([{"type": 4}, {"type": 2}], True, None),
        ([{"type": 4}], False, None),
        (
            [{"type": 4, "env_name": "arm"}],
            True,
            "because the data name a real robot (env_args type 4)",
        ),
        ([{"env_name": "?"}], True, "because the data name no environment (env_args)"),
        ([{"type": 4, "env_name": "robot:arm"}], True, "because robot:arm is a single robot"),
    ],
)
def test_evaluations_on_real_robots_are_left_out(data, metas, enabled, line):
    made = Made(config(data, experiment={"rollout": {"enabled": enabled}}), metas)
    after, lines = without_real_robots(made)
    if line is None:
        assert after is made and lines == []
    else:
        assert lines[0].startswith(f"rollouts are off, {line}") and len(lines) == 1
        assert after.config.experiment.rollout.enabled is False


def test_settings_that_have_no_effect_are_refused(data):
    rolls = {"experiment": {"save": {"enabled": False}}, "on_bad_loss": "rollback"}
    with refused("'rollback' needs checkpoints, but", error=ConfigError):
        resolve(config(data, **rolls), None, None)
    tree = config(data).to_dict()
    for key in ("train.data", "train.data.0.path", "train.output_dir"):
        options = (
            {"dataset": data, "output_dir": None}
            if "data" in key
            else {"dataset": None, "output_dir": "x"}
        )
        with refused(f"so {key} has no effect: omit one of them", error=ConfigError):
            load_overridden(tree, [], **options, grid=[key])
        load_overridden(tree, [], None, None, grid=[key])
    load_overridden(tree, ["train.seed=3"], data, "x", grid=["train.output_dirs"])


# ---- resuming ------------------------------------------------------------------------------------


SAVED = {"path": "a", "size_bytes": 3, "sha256": "x", "content_sha256": "y", "content_version": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"path": "b", "size_bytes": 9, "more": 1}, None),
        ({"sha256": "z"}, "(sha256: actions, or names of demos)"),
        ({"content_sha256": "z"}, "(content_sha256: observations, rewards or other values)"),
        ({"sha256": "z", "content_sha256": "z"}, "names of demos, content_sha256: observations"),
        ({"demos_sha256": 1}, None),  # of a run by an earlier version
    ],
)
def test_data_that_have_changed(change, words):
    said = []
    if words is None:
        check_same_data([SAVED], [{**SAVED, **change}], said.append)
    else:
        with refused(f"{words}|has changed since the run began", error=CheckpointError):
            check_same_data([SAVED], [{**SAVED, **change}], said.append)
    assert said == []


def test_data_of_another_version_are_compared_by_their_actions():
    said, now = [], {**SAVED, "content_version": 3, "content_sha256": "z", "path": "here"}
    check_same_data([SAVED], [now], said.append)
    assert len(said) == 1 and said[0].startswith("here: its actions are unchanged")
    with refused("here: has changed since the run began (sha256:", error=CheckpointError):
        check_same_data([SAVED], [{**now, "sha256": "z"}], said.append)
    with refused("the run began with 1 dataset, but now has 2", error=CheckpointError):
        check_same_data([SAVED], [SAVED, SAVED], said.append)


def test_what_a_checkpoint_cannot_restore_is_one_line(tmp_path):
    words = f"{tmp_path / 'a.pth'}: no run can be resumed from it (KeyError: 'x')"
    with refused(words, error=CheckpointError), restored(tmp_path / "a.pth"):
        raise KeyError("x")
    with refused("(ValueError: last): replace it", error=CheckpointError), restored("a.pth"):
        raise ValueError("first\nlast ")
    with refused("own", error=ConfigError), restored("a.pth"):
        raise ConfigError("own")


def test_changes_of_a_resumed_run(data, tmp_path):
    folder = RunFolder(tmp_path)
    folder.config.write_text(resolve(config(data), None, None).to_json())
    assert resumed_config(folder, ["train.num_epochs=9"]).train.num_epochs == 9
    assert resumed_config(folder, ["experiment.save.keep_last=2"]).experiment.save.keep_last == 2
    for key in ("train.seed", "train.num_epochs_more", "experiment.name"):
        with refused(f"--set {key}: cannot change in a resumed run", error=ConfigError):
            resumed_config(folder, [f"{key}=1"])
    moved = data.rename(tmp_path / "b.hdf5")
    with refused("if it was moved, give its new path: --dataset PATH", error=ConfigError):
        resumed_config(folder, [])
    assert resumed_config(folder, [], moved).train.data[0].path == str(moved)
    twice = f'train.data=[{{"path": "{moved}"}}, {{"path": "{moved}"}}]'
    with refused("--dataset: the run has 2 datasets: give", error=ConfigError):
        resumed_config(folder, [twice], moved)
    assert resuming(folder) in (
        f"imitate train --resume {tmp_path}",
        f"imitate train --resume '{tmp_path}'",
    )


def test_versions_of_the_installed_packages():
    found = package_versions()
    names = ("imitate", "torch", "numpy", "h5py", "gymnasium", "robosuite", "mujoco")
    assert set(found) <= set(names) and {"torch", "numpy", "h5py"} <= set(found)
    assert found == {name: metadata.version(name) for name in found}
    found.clear()
    assert package_versions()


def test_the_commit_of_the_working_directory(monkeypatch):
    asked, answers = [], ["abc\n", OSError(), module.subprocess.CalledProcessError(128, "git")]

    def run(command, **how):
        asked.append((command, how))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Words(stdout=answer)

    monkeypatch.setattr(module.subprocess, "run", run)
    assert [module.git_commit() for _ in range(3)] == ["abc", None, None]
    how = {"capture_output": True, "text": True, "timeout": 5, "check": True}
    assert asked == [(["git", "rev-parse", "HEAD"], how)] * 3


def test_lines_of_a_setup():
    words = module.Setup.storage_words.fget
    assert words(Words(train_set=None)) == ()
    assert words(Words(train_set=Words(storage_words=["a", "b"]))) == ("a", "b")
    words = module.Setup.language_words.fget
    data = Words(instructions=Words(words="two instructions"))
    assert words(Words(train_set=data, language={})) == ("two instructions",)
    assert words(Words(train_set=None, language={})) == ()
    assert words(Words(train_set=data, language=None)) == ()


@pytest.mark.parametrize(
    ("resumed", "begins_with", "pretrained"),
    [(False, None, True), (True, None, False), (False, "a.pth", False)],
)
def test_pretrained_weights_are_loaded_where_no_others_come(
    data, monkeypatch, resumed, begins_with, pretrained
):
    asked, make = [], module.algo_factory

    def factory(*given, load_pretrained):
        asked.append(load_pretrained)
        return make(*given, load_pretrained=load_pretrained)

    monkeypatch.setattr(module, "algo_factory", factory)
    monkeypatch.setattr(module, "start_from", lambda algo, experiment: asked.append("begun"))
    monkeypatch.setattr(
        module, "check_relative", lambda config, preprocess: asked.append("checked")
    )
    given = config(data, experiment={"ckpt_path": begins_with})
    build(given, torch.device("cpu"), resumed=resumed)
    assert asked == ["checked", pretrained, *(() if resumed else ("begun",))]


@pytest.mark.parametrize(
    ("normalization", "steps", "refuses"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("min_max", True, False),
        ("min_max", False, False),
    ],
)
def test_relative_actions_have_no_automatic_normalization(normalization, steps, refuses):
    entries = {"actions": {"normalization": normalization}, "other": {"normalization": "auto"}}
    given = Words(
        train=Words(
            action_config=Words(to_dict=lambda: {key: dict(one) for key, one in entries.items()}),
            action_keys=["actions"],
            preprocess=[Words(step="relative_actions" if steps else "resize")],
        )
    )
    stats = Words(min=np.array([-1.0]), max=np.array([1.0]))
    train_set = Words(statistics=lambda: {"actions": {"actions": stats}})
    if refuses:
        words = "train.action_config.actions.normalization is 'auto'|but step 'relative_actions'"
        with refused(words, error=ConfigError):
            module.normalization_for_auto(given, train_set)
        return
    found = module.normalization_for_auto(given, train_set)
    if normalization == "auto":
        kept = module.action_normalization(stats.min, stats.max)
        assert found == {"train.action_config": {**entries, "actions": {"normalization": kept}}}
    else:
        assert found == {}


@pytest.mark.parametrize("here", [True, False])
def test_an_environment_is_advised_where_it_can_be_given(data, monkeypatch, here):
    monkeypatch.setattr(module, "offered", lambda option: here and option == "--env")
    _, (line,) = without_real_robots(
        Made(config(data, experiment={"rollout": {"enabled": True}}), [{}])
    )
    given = "--env module:Name-v0, or " if here else ""
    assert line == (
        "rollouts are off, because the data name no environment (env_args); to evaluate in a "
        f"simulator: {given}add it to the file: imitate dataset set-env FILE --env module:Name-v0"
    )
