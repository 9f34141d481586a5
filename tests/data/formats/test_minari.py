"""Minari: T + 1 observations, no lossy frames, metadata, and datasets that its own package reads."""

import json

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import MinariDataset

from imitate.data import DatasetFile
from imitate.data.formats.base import ConversionReport
from imitate.data.formats.convert import convert
from imitate.data.formats.minari import action_columns, leaves, space_of
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos

LENGTHS = (3, 5, 4)
pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def buffers(observe, act, words):
    return [
        EpisodeBuffer(
            id=number,
            seed=number + 10,
            observations=observe(number, length + 1),
            actions=act(number, length),
            rewards=np.arange(length, dtype=np.float64),
            terminations=np.arange(length) == (length - 1 if number != 1 else -1),
            truncations=np.arange(length) == (length - 1 if number == 1 else -1),
            infos=infos_of(length, words),
        )
        for number, length in enumerate(LENGTHS)
    ]


def infos_of(length, words):
    # The package itself cannot read texts and plain numbers back from arrow.
    x = np.arange(length + 1) + 0.5
    return {"x": x, "words": ["a"] * (length + 1)} if words else {"x": x[:, None]}


def counted(number, length):
    return np.stack([np.full(length, number), np.arange(length)], axis=1).astype(np.float32)


def make(data_format="hdf5", observe=counted, space=None, act=None, action_space=None, **more):
    act = act or (lambda number, length: counted(number, length) / 10)
    return minari.create_dataset_from_buffers(
        "toy-v0",
        buffers(observe, act, data_format == "hdf5"),
        observation_space=space or spaces.Box(-99, 99, (2,), np.float32),
        action_space=action_space or spaces.Box(-1, 1, (2,), np.float32),
        data_format=data_format,
        **more,
    )


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_the_last_episode_is_where_it_belongs(datasets, tmp_path, data_format):
    make(data_format=data_format, author={"A", "B"}, algorithm_name="SAC", description="toy")
    report = convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    assert (report.source_format, report.demos, report.steps) == ("minari", 3, 12)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_2", "obs/flat").tolist() == [[2, 0], [2, 1], [2, 2], [2, 3]]
        assert file.read("demo_2", "next_obs/flat").tolist() == [[2, 1], [2, 2], [2, 3], [2, 4]]
        assert file.shape("demo_2", "actions") == (4, 2)
        assert file.read("demo_1", "timeouts").tolist() == [0, 0, 0, 0, 1]
        assert file.read("demo_2", "terminals").tolist() == [0, 0, 0, 1]
        assert file.read("demo_2", "infos/x").ravel().tolist() == [0.5, 1.5, 2.5, 3.5]
        assert np.ravel(file.attrs("demo_2")["final_infos.x"]).tolist() == [4.5]
        assert file.attrs("demo_2")["seed"] == 12
        attrs = file.file_attrs
    assert (attrs["minari.algorithm_name"], attrs["minari.description"]) == ("SAC", "toy")
    assert sorted(json.loads(attrs["minari.author"])) == ["A", "B"]
    if data_format == "hdf5":
        assert "infos/words" in report.dropped


def test_nested_observations_discrete_actions_and_the_environment(datasets, tmp_path):
    eye = spaces.Box(0, 255, (3, 16, 16), np.uint8)
    arm = spaces.Dict({"q": spaces.Box(-99, 99, (2,), np.float32), "an eye": eye})

    def observe(number, length):
        seen = np.zeros((length, 3, 16, 16), np.uint8)
        seen[:, 2] = number
        return {
            "goal": np.full(length, number), "arm": {"q": counted(number, length), "an eye": seen},
        }  # fmt: skip

    make(
        observe=observe,
        space=spaces.Dict({"goal": spaces.Discrete(3), "arm": arm}),
        act=lambda number, length: np.arange(length) % 2,
        action_space=spaces.Discrete(2),
        env=gymnasium.spec("CartPole-v1"),
    )
    report = convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    assert report.renamed["env_spec"] == "env_args"
    assert report.renamed["observations"] == "obs and next_obs: arm_an_eye, arm_q, goal"
    with DatasetFile(tmp_path / "o.hdf5") as file:
        # as ObservationSpace gives them
        assert file.obs_keys("demo_2") == ["arm_an_eye", "arm_q", "goal"]
        assert file.read("demo_2", "obs/arm_an_eye")[0, 5, 5].tolist() == [0, 0, 2]
        assert file.read("demo_2", "obs/goal")[0].tolist() == [0, 0, 1]
        assert file.read("demo_1", "next_obs/arm_q")[-1].tolist() == [1, 5]
        assert file.read("demo_0", "actions").tolist() == [[1, 0], [0, 1], [1, 0]]
        assert file.env_meta["env_name"] == "CartPole-v1"


FRAME = np.full((2, 16, 16, 3), 7)


@pytest.mark.parametrize(
    ("space", "values", "dtype"),
    [
        (spaces.Box(0, 255, (16, 16, 3), np.int16), FRAME.astype(np.int16), np.uint8),
        (
            spaces.Box(np.arange(768).reshape(16, 16, 3) % 2, 255, dtype=np.int16),
            FRAME.astype(np.int16),
            np.int16,
        ),
        (spaces.Box(0, 254, (16, 16, 3), np.int16), FRAME.astype(np.int16), np.int16),
        (spaces.Box(1, 255, (16, 16, 3), np.int16), FRAME.astype(np.int16), np.int16),
        (spaces.Box(0, 255, (16, 16, 3), np.int32), FRAME.astype(np.int32), np.int32),
        (spaces.Box(0, 255, (16, 16, 3), np.float32), FRAME.astype(np.float32), np.float32),
    ],
)
def test_frames_that_were_written_as_int16_are_pixels_again(space, values, dtype):
    found = leaves({"i": values}, spaces.Dict({"i": space}), ConversionReport())["i"]
    assert found.dtype == dtype and (found == 7).all()


def test_actions_of_several_parts():
    parts = {"a": spaces.Box(-1, 1, (2, 1)), "b": spaces.Discrete(3, start=1)}
    values = {"a": np.ones((2, 2, 1)), "b": np.array([1, 3])}
    for space, given, words in (
        (spaces.Dict(parts), values, "a, b side by side"),
        (spaces.Tuple(list(parts.values())), list(values.values()), "2 parts side by side"),
    ):
        report = ConversionReport()
        assert action_columns(given, space, "x", report).tolist() == [
            [1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1],
        ]
        assert report.changed["actions"] == words
    with pytest.raises(DatasetError, match="x: actions are texts"):
        action_columns(["a"], spaces.Text(3), "x", ConversionReport())


@pytest.mark.parametrize(
    ("dtype", "frames", "low", "high"),
    [
        (np.int16, True, 0, 255),
        (np.int16, False, -32768, 32767),
        (np.uint8, False, 0, 255),
        (np.float32, False, -np.inf, np.inf),
        (bool, False, 0, 1),
    ],
)
def test_the_space_of_values(dtype, frames, low, high):
    found = space_of(np.zeros((4, 3), dtype), frames)
    assert (found.shape, found.dtype) == ((3,), dtype)
    assert (found.low == low).all() and (found.high == high).all()


def test_episodes_without_their_last_observation_are_named(datasets, tmp_path):
    make(observe=lambda number, length: counted(number, length - (number == 2)))
    with pytest.raises(DatasetError, match="episode 2: 4 observations 'flat' and 4 actions"):
        convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    assert not (tmp_path / "o.hdf5").exists()


def test_an_array_that_claims_more_than_the_folder_holds_is_not_read(datasets, tmp_path):
    make()
    (file,) = (datasets / "toy-v0").rglob("*.hdf5")
    with h5py.File(file, "a") as content:
        content.create_dataset("episode_0/huge", (2**40,), "u1", chunks=(2**10,))
    with pytest.raises(DatasetError, match="'episode_0/huge'"):
        convert(datasets / "toy-v0", tmp_path / "o.hdf5")


def check_data_integrity(path):
    """Check a dataset as Minari's own tests do: counts, lengths, and values within the spaces."""
    dataset = MinariDataset(path / "data")
    episodes = list(dataset.iterate_episodes())
    assert dataset.total_episodes == len(episodes)
    assert dataset.total_steps == sum(len(one.rewards) for one in episodes)
    for one in episodes:
        assert len(one.rewards) == len(one.terminations) == len(one.truncations)
        for t in range(len(one.rewards) + 1):
            seen = {key: values[t] for key, values in one.observations.items()}
            assert dataset.observation_space.contains(seen)
        assert all(dataset.action_space.contains(action) for action in one.actions)
    return dataset


@pytest.mark.parametrize("link", ["following", "missing", "stored"])
def test_minari_reads_what_is_written(datasets, tmp_path, link):
    random, demos = np.random.default_rng(0), []
    for length in (1, 4):
        images = random.integers(0, 256, (length + 1, 40, 33, 3), dtype=np.uint8)
        seen = {"object": random.normal(size=(length + 1, 4)), "agentview_image": images}
        after = {key: value[1:] + (link == "stored") for key, value in seen.items()}
        after = None if link == "missing" else after
        obs = {key: value[:-1] for key, value in seen.items()}
        demos.append(episode(length, obs, random.normal(size=(length, 2)), next_obs=after))
    write_demos(tmp_path / "a.hdf5", demos)
    convert(tmp_path / "a.hdf5", datasets / "lift-v0", to_format="minari")
    assert check_data_integrity(datasets / "lift-v0").total_steps == 5
    assert minari.load_dataset("lift-v0").spec.dataset_id == "lift-v0"
    convert(datasets / "lift-v0", tmp_path / "b.hdf5")
    with DatasetFile(tmp_path / "a.hdf5") as before, DatasetFile(tmp_path / "b.hdf5") as after:
        keys = ["obs/object", *["next_obs/object"] * (link != "missing")]
        assert after.has("demo_1", "next_obs/object") == (link != "missing")
        for key in keys:
            np.testing.assert_array_equal(after.read("demo_1", key), before.read("demo_1", key))


def test_metadata_and_infos_survive_minari_to_hdf5_to_minari(datasets, tmp_path):
    make(author={"A"}, algorithm_name="SAC")
    convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    convert(tmp_path / "o.hdf5", datasets / "again-v1", to_format="minari")
    dataset = check_data_integrity(datasets / "again-v1")
    metadata = dataset.storage.metadata
    assert (metadata["author"], metadata["algorithm_name"]) == ({"A"}, "SAC")
    last = list(dataset.iterate_episodes())[-1]
    np.testing.assert_array_equal(last.observations["flat"], counted(2, 5))
    np.testing.assert_array_equal(last.infos["x"], np.arange(5) + 0.5)


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_an_environment_that_a_dataset_describes_is_never_made(datasets, tmp_path, missing):
    make()
    file = datasets / "toy-v0" / "data" / "metadata.json"
    called = {"id": "x-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(tmp_path / "called")}}
    tree = {**json.loads(file.read_text()), "env_spec": json.dumps(called)}
    del tree[missing]
    file.write_text(json.dumps(tree))
    with pytest.raises(DatasetError, match=f"has no '{missing}'.* run code"):
        convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    assert not (tmp_path / "called").exists()


def test_a_name_that_minari_refuses_is_refused_first(datasets, tmp_path):
    make()
    convert(datasets / "toy-v0", tmp_path / "o.hdf5")
    with pytest.raises(DatasetError, match="named <name>-v<number>"):
        convert(tmp_path / "o.hdf5", tmp_path / "toy", to_format="minari")
    assert not (tmp_path / "toy").exists()


def test_a_relative_path_may_be_written(demo_file, tmp_path, monkeypatch):
    demos = demo_file(num_demos=1)
    monkeypatch.chdir(tmp_path)
    convert(demos, "here-v0", to_format="minari")
    with DatasetFile("here-v0") as file:
        assert file.demos() == ["demo_0"]
