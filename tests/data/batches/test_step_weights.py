import numpy as np
import pytest

from imitate import load_config
from imitate.data import DatasetWriter, Episode, build_datasets
from imitate.errors import ConfigError, DatasetError

RETURNS = (0.0, 3.0, 1.0, 3.0)
LENGTHS = (4, 5, 4, 3)


def write(path, returns=RETURNS, lengths=LENGTHS, **steps):
    with DatasetWriter(path, {"env_name": "Toy", "type": 2, "env_kwargs": {}}) as writer:
        for number, (total, length) in enumerate(zip(returns, lengths, strict=True)):
            last = np.arange(length) == length - 1
            x = np.full((length, 1), number, dtype=np.float32)
            writer.append_episode(
                Episode(
                    obs={"x": x},
                    next_obs={"x": x},
                    actions=x / 10,
                    rewards=np.where(last, total, 0.0).astype(np.float32),
                    terminals=last,
                    timeouts=last & False,
                    steps={key: np.full(length, value[number]) for key, value in steps.items()},
                )
            )
    return path


def build(*paths, **train):
    tree = {
        "algo_name": "bc",
        "train": {"data": [{"path": str(path)} for path in paths], **train},
        "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
    }
    return build_datasets(load_config(tree))[0]


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [
        (1.0, ["demo_0", "demo_1", "demo_2", "demo_3"]),
        (0.75, ["demo_1", "demo_2", "demo_3"]),
        (0.5, ["demo_1", "demo_3"]),
        (0.3, ["demo_3"]),  # of the two best the shorter
        (0.01, ["demo_3"]),  # one at least
    ],
)
def test_the_best_demos_are_kept(tmp_path, fraction, kept):
    dataset = build(write(tmp_path / "d.hdf5"), filter_best=fraction)
    assert dataset.demos == kept


def test_the_best_of_all_files_together(tmp_path):
    good = write(tmp_path / "good.hdf5", returns=(5.0, 6.0), lengths=(3, 3))
    bad = write(tmp_path / "bad.hdf5", returns=(0.0, 1.0), lengths=(3, 3))
    dataset = build(bad, good, filter_best=0.5)
    assert dataset.demos == ["good.hdf5/demo_0", "good.hdf5/demo_1"]
    assert len(build(bad, good, filter_best=0.75)) == 9


def test_statistics_are_those_of_what_is_trained_on(tmp_path):
    dataset = build(write(tmp_path / "d.hdf5"), filter_best=0.3)
    assert dataset.statistics()["obs"]["x"].mean.tolist() == [3.0]


def test_demos_weigh_by_their_return(tmp_path):
    path = write(tmp_path / "d.hdf5")
    dataset = build(path, sample_weight={"kind": "return", "temperature": 0.5})
    weight = dataset[np.arange(16)]["weight"][:, 0].numpy()
    # returns 0, 1, 1/3, 1 of the way from worst to best
    raw = np.repeat(np.exp(2.0 * np.array([0.0, 1.0, 1 / 3, 1.0])), LENGTHS)
    np.testing.assert_allclose(weight, raw / raw.mean(), rtol=1e-6)


def test_steps_weigh_by_what_is_to_come(tmp_path):
    path = write(tmp_path / "d.hdf5", returns=(0.0, 1.0), lengths=(2, 3))
    section = {"kind": "return_to_go", "temperature": 1.0, "discount": 0.5}
    weight = build(path, sample_weight=section)[np.arange(5)]["weight"][:, 0].numpy()
    raw = np.exp([0.0, 0.0, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(weight, raw / raw.mean(), rtol=1e-6)


def test_weights_of_the_file(tmp_path):
    path = write(tmp_path / "d.hdf5", progress=(0.0, 1.0, 3.0, 0.0))
    dataset = build(path, sample_weight={"kind": "key", "key": "progress"}, seq_length=3)
    batch = dataset[np.array([0, 4, 13])]
    # mean over 16 steps: (5 * 1 + 4 * 3) / 16
    np.testing.assert_allclose(batch["weight"][1].numpy(), 16 / 17, rtol=1e-6)
    assert batch["weight"].shape == (3, 3)
    assert batch["weight"][[0, 2]].tolist() == [[0.0] * 3] * 2


def test_bad_weights_are_refused(tmp_path):
    path = write(tmp_path / "d.hdf5", progress=(0.0, -1.0, 3.0, 0.0))
    with pytest.raises(DatasetError, match="none below 0 and not all 0; found values from -1 to 3"):
        build(path, sample_weight={"kind": "key", "key": "progress"})
    with pytest.raises(ConfigError, match="set both or none"):
        build(path, sample_weight={"kind": "key"})
    with pytest.raises(DatasetError, match="no 'progres'.*'progress'|progres"):
        build(path, sample_weight={"kind": "key", "key": "progres"})


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, {0.0: 0.0, 1.0: 16 / 5}),  # five steps by hand of sixteen
        (0.5, {0.0: 0.5 * 16 / 11, 1.0: 0.5 * 16 / 5}),
    ],
)
def test_interventions(tmp_path, share, expected):
    path = write(tmp_path / "d.hdf5", interventions=(0, 1, 0, 0))
    dataset = build(path, sample_weight={"kind": "interventions", "policy_share": share})
    batch = dataset.__getitems__(list(range(len(dataset))))[0]
    by_hand = dataset.numbers.array("interventions").reshape(-1)
    for kind, weight in expected.items():
        np.testing.assert_allclose(batch["weight"][:, 0][by_hand == kind], weight, rtol=1e-6)


def test_demonstrations_alone_count_alike_and_rollouts_alone_not_at_all(tmp_path):
    path = write(tmp_path / "d.hdf5", interventions=(1, 1, 1, 1))
    batch = build(path, sample_weight={"kind": "interventions"}).__getitems__([0, 5])[0]
    assert "weight" not in batch
    path = write(tmp_path / "none.hdf5", interventions=(0, 0, 0, 0))
    with pytest.raises(DatasetError, match="0 everywhere"):
        build(path, sample_weight={"kind": "interventions"})
