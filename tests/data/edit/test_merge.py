"""Merging of files: names, filter keys, arrays that not all have, what cannot be merged."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit.merge import check_alike, environments_left_out, merge, new_names
from imitate.data.edit.target import Target
from imitate.data.file.action_scale import OFFSET, SCALE
from imitate.data.file.features import as_attribute, features_of
from imitate.errors import DatasetError
from tests.demo_files import ENV_META, episode, write_demos

NAMED = {"feature": "state", "shape": [1], "names": ["a"]}


@pytest.fixture
def write(tmp_path):
    """Writes a file of two demos of 2 and 3 steps."""

    def make(name, names=None, masks=None, env="Lift", attrs=None, steps=(), width=1):
        demos = [
            episode(
                n,
                {"s": np.zeros((n, width))},
                actions=np.full((n, 1), n / 10),
                steps={key: np.full((n, *shape), 0.5) for key, shape in steps},
            )
            for n in (2, 3)
        ]
        meta = {**ENV_META, "env_name": env}
        path = write_demos(tmp_path / name, demos, meta, masks, names)
        with h5py.File(path, "r+") as file:
            file["data"].attrs.update(attrs or {})
        return path

    return make


def merged(tmp_path, *sources, **how):
    out = tmp_path / "out.hdf5"
    return merge(sources, Target(out), **how), out


def test_demos_are_numbered_where_names_are_equal_and_masks_joined(write, tmp_path):
    sources = write("a.hdf5", masks={"m": [0], "n": [1]}), write("b.hdf5", masks={"m": [1]})
    seen = []
    for number, path in enumerate(sources):
        with h5py.File(path, "r+") as file:
            file.attrs["root"] = file["data"].attrs["own"] = number
    names, out = merged(tmp_path, *sources, on_demo=lambda *at: seen.append(at))
    assert names == [
        {"demo_0": "demo_0", "demo_1": "demo_1"},
        {"demo_0": "demo_2", "demo_1": "demo_3"},
    ]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with DatasetFile(out) as file:
        assert file.demos() == [f"demo_{n}" for n in range(4)]
        assert file.filter_keys() == {"m": ["demo_0", "demo_3"], "n": ["demo_1"]}
        assert [file.length(demo) for demo in file.demos()] == [2, 3, 2, 3]
        assert file.read("demo_3", "actions").ravel() == pytest.approx([0.3] * 3)
    with h5py.File(out) as file:
        assert file["data"].attrs["total"] == 10
        assert (file.attrs["root"], file["data"].attrs["own"]) == (0, 0)  # of the first file


def test_different_names_are_kept(write):
    sources = write("a.hdf5"), write("b.hdf5", names=["demo_7", "demo_8"])
    assert new_names(sources)[1] == {"demo_7": "demo_7", "demo_8": "demo_8"}


def test_demonstrations_become_corrections_beside_recordings(write, tmp_path):
    steps = [("interventions", ()), ("labelled", ()), ("policy_actions", (1,))]
    sources = write("a.hdf5", steps=steps), write("b.hdf5", steps=[("timestamps", ())])
    _, out = merged(tmp_path, *sources)
    with DatasetFile(out) as file:
        assert file.read("demo_0", "interventions").tolist() == [0.5, 0.5]
        assert file.read("demo_2", "interventions").tolist() == [1, 1]
        assert file.read("demo_2", "labelled").tolist() == [1, 1]
        np.testing.assert_array_equal(
            file.read("demo_3", "policy_actions"), file.read("demo_3", "actions")
        )
        assert not file.has("demo_0", "timestamps") and not file.has("demo_2", "timestamps")
        assert not file.has("demo_2", "executed_actions")


def test_arrays_that_not_all_have(write, tmp_path):
    sources = write("a.hdf5"), write("b.hdf5", steps=[("x", ())])
    assert check_alike(sources, common_keys=True, any_env=False) == {"x"}
    with pytest.raises(
        DatasetError, match=r"a.hdf5: demo 'demo_0' has no 'x', but other demos have it"
    ):
        check_alike(sources, common_keys=False, any_env=False)
    more = [sources[0], write("two.hdf5", steps=[("z", ()), ("b", ())])]
    with pytest.raises(DatasetError, match="has no 'b', but other"):  # the first by its name
        check_alike(more, common_keys=False, any_env=False)
    _, out = merged(tmp_path, *sources, common_keys=True)
    with DatasetFile(out) as file:
        assert not file.has("demo_2", "x")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"width": 2},
            r"a step of 'obs/s' has shape \(2,\), but \(1,\) in .*a.hdf5: demo 'demo_0'",
        ),
        ({"env": "Stack"}, r"environment \('Stack', 1\), but \('Lift', 1\) .* or add --any-env"),
        ({"attrs": {OFFSET: [0.0], SCALE: [2.0]}}, "rescaled in different ways"),
    ],
)
def test_files_that_do_not_fit(write, other, words):
    sources = write("a.hdf5"), write("b.hdf5", **other)
    with pytest.raises(DatasetError, match=words):
        check_alike(sources, common_keys=True, any_env=False)


def test_environments(write, tmp_path):
    sources = [write("a.hdf5"), write("b.hdf5", env="Stack"), write("c.hdf5")]
    assert environments_left_out(sources) == ["Stack"]
    assert check_alike(sources, common_keys=False, any_env=True) == set()
    _, out = merged(tmp_path, *sources, any_env=True)
    with DatasetFile(out) as file:
        assert file.env_meta["env_name"] == "Lift"
    classes = write("d.hdf5", env="folder/arm.py:Arm"), write("e.hdf5", env="arm:Arm")
    assert check_alike(classes, common_keys=False, any_env=False) == set()
    with pytest.raises(DatasetError, match="environment"):
        check_alike([classes[0], write("f.hdf5", env="arm:Other")], False, False)


def test_one_file_or_no_demo(write, tmp_path):
    with pytest.raises(DatasetError, match="at least two files"):
        merged(tmp_path, write("a.hdf5"))
    with pytest.raises(DatasetError, match="there is no demo to merge"):
        empty = write("b.hdf5")
        with h5py.File(empty, "r+") as file:
            del file["data/demo_0"], file["data/demo_1"]
        check_alike([empty, empty], False, False)


@pytest.mark.parametrize(
    ("second", "names"), [({"obs/s": NAMED}, ["a"]), ({"obs/s": {**NAMED, "names": ["b"]}}, None), ({}, None)]
)  # fmt: skip
def test_names_of_numbers_that_all_files_share(write, tmp_path, second, names):
    attrs = [{"features": as_attribute(entries)} for entries in ({"obs/s": NAMED}, second)]
    sources = [write(f"{n}.hdf5", attrs=own) for n, own in zip("ab", attrs, strict=True)]
    _, out = merged(tmp_path, *sources)
    with DatasetFile(out) as file:
        assert features_of(file.file_attrs, "")["obs/s"]["names"] == names
    _, out = merged(tmp_path / "x", write("c.hdf5"), sources[0])
    with DatasetFile(out) as file:
        assert "features" not in file.file_attrs


def test_messages_name_the_first_and_the_differing_file(write):
    """The third of three demos or files differs, in each way."""
    a, b, c = (write(f"{name}.hdf5") for name in "abc")

    def check(words, *paths):
        with pytest.raises(DatasetError) as error:
            check_alike([a, b, *paths], False, False)
        assert str(error.value).startswith(words)

    other = write("env.hdf5", env="Stack")
    check(f"{other}: environment ('Stack', 1), but ('Lift', 1) in {a}: merge files", c, other)
    scaled = write("scale.hdf5", attrs={OFFSET: [0.0], SCALE: [2.0]})
    check(f"{a}: the actions of the files are rescaled in different ways", c, scaled)
    check(f"{a}: the actions of the files are rescaled in different ways", scaled, c)
    wide = write("wide.hdf5", width=2)
    words = (
        f"{wide}: demo 'demo_0': a step of 'obs/s' has shape (2,), but (1,) in {a}: demo 'demo_0':"
    )
    check(words, wide)
    with h5py.File(c, "r+") as file:
        del file["data/demo_1/rewards"]
    check(f"{c}: demo 'demo_1' has no 'rewards', but other demos have it: leave such keys out", c)
    with h5py.File(a, "r+") as file:
        del file["data/demo_1/rewards"]
        file["data/demo_1/rewards"] = np.zeros((3, 2))
    check(f"{a}: demo 'demo_1': a step of 'rewards' has shape (2,), but () in {a}: demo 'demo_0'")
