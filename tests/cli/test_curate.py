"""imitate dataset split, filter, subset, merge, delete, rename-key, stats."""

import io
import json
from pathlib import Path

import h5py
import numpy as np
import pytest


def masks_of(path):
    with h5py.File(path) as file:
        return {key: [n.decode() for n in value[()]] for key, value in file["mask"].items()}


def demos_of(path):
    with h5py.File(path) as file:
        return sorted(file["data"])


def same_demo(first, second):
    """Arrays and attributes of two demos are equal."""
    assert dict(first.attrs) == dict(second.attrs)
    keys = []
    first.visit(keys.append)
    for key in keys:
        if isinstance(first[key], h5py.Dataset):
            assert first[key].dtype == second[key].dtype
            np.testing.assert_array_equal(first[key][()], second[key][()])
    again = []
    second.visit(again.append)
    assert keys == again


@pytest.fixture
def file(demo_file):
    """Lengths 5, 10, 15, 20; demo_2 fails."""
    path = demo_file(num_demos=4, length=[5, 10, 15, 20], filter_keys={"mine": [1, 3]})
    with h5py.File(path, "r+") as opened:
        opened["data/demo_2"].attrs["success"] = False
        opened["data/demo_3/rewards"][:4] = 1
        opened["data"].attrs["note"] = "kept"
    return path


@pytest.fixture
def data(call):
    """Calls a command of ``imitate dataset`` in the folder of `file`."""
    return lambda line, *words, code=0: call(f"dataset {line}", *words, code=code)


def test_split(data, file):
    before = file.read_bytes()
    split = "split demos.hdf5 --ratio 0.25 --seed 3 --out"
    assert data(f"{split} out.hdf5").stdout == "out.hdf5: train 3, valid 1\n"
    masks = masks_of("out.hdf5")
    assert sorted(masks["train"] + masks["valid"]) == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert masks["mine"] == ["demo_1", "demo_3"]
    assert file.read_bytes() == before
    data(f"{split} again.hdf5")
    assert masks_of("again.hdf5") == masks
    with h5py.File(file) as old, h5py.File("out.hdf5") as new:
        for demo in old["data"]:
            same_demo(old["data"][demo], new["data"][demo])


def test_a_folder_is_not_offered_to_be_changed_in_place(data, file):
    assert "--in-place" in data("split demos.hdf5", code=2).output
    assert "--in-place" not in data("split .", code=2).output


def test_split_of_a_filter_key_in_place(data, file):
    before = file.read_bytes()
    data("split demos.hdf5 --in-place --filter-key mine --ratio 0.5")
    masks = masks_of(file)
    assert sorted(masks["mine_train"] + masks["mine_valid"]) == ["demo_1", "demo_3"]
    assert len(masks["mine_valid"]) == 1
    with h5py.File(file) as new, h5py.File(io.BytesIO(before)) as old:
        same_demo(old["data/demo_3"], new["data/demo_3"])
    for number in range(4):
        data(f"filter demos.hdf5 key_{number} --first 2 --in-place")
    assert len(masks_of(file)) == 7
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"], "no copy for each key"
    assert file.stat().st_size < len(before) + 20_000


@pytest.mark.parametrize("out", [None, "new.hdf5"])
@pytest.mark.parametrize(
    ("verb", "left"), [("split demos.hdf5", 5), ("filter demos.hdf5 train --first 1", 1)]
)
def test_filter_keys_that_are_there_are_not_replaced(data, demo_file, verb, left, out):
    file = demo_file(num_demos=6, filter_keys={"train": [0, 1, 2, 3], "valid": [4, 5]})
    before = file.read_bytes()
    line = f"{verb} --in-place" if out is None else f"{verb} --out {out}"
    told = data(line, code=2).stderr
    assert "train 4" in told and "--overwrite" in told
    assert file.read_bytes() == before and not Path("new.hdf5").exists()
    data(f"{line} --overwrite")
    assert len(masks_of(out or file)["train"]) == left


def test_the_same_split_again_is_no_replacement(data, file):
    data("split demos.hdf5 --in-place")
    before = masks_of(file)
    data("split demos.hdf5 --in-place")
    assert masks_of(file) == before


def test_split_of_successes(data, demo_file):
    file = demo_file(num_demos=6)
    with h5py.File(file, "r+") as opened:
        opened["data/demo_2"].attrs["success"] = False
    told = data("split demos.hdf5 --in-place --seed 1").stderr
    assert "demo_2" in masks_of(file)["train"]
    assert "1 of the demos in train failed" in told and "--success" in told
    told = data("split demos.hdf5 --in-place --success --overwrite").output
    assert told == "demos.hdf5: train 4, valid 1\n"
    masks = masks_of(file)
    assert "demo_2" not in masks["train"] + masks["valid"]


def test_filter_keys_are_not_written_under_a_reader(data, file):
    before = file.read_bytes()
    with h5py.File(file):
        told = data("split demos.hdf5 --in-place", code=2).stderr
    assert "another process reads or writes it" in told
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"]


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ("--first 2", "01"),
        ("--demos demo_3,demo_0", "03"),
        ("--demos demo_3,demo_0-demo_1", "013"),
        ("--success", "013"),
        ("--failure", "2"),
        ("--min-length 10 --max-length 15", "12"),
        ("--min-return 2", "3"),
        ("--max-return 1", "012"),
        ("--filter-key mine --max-length 10", "1"),
        ("--success --min-length 6 --first 1", "1"),
    ],
)
def test_filter_and_subset_take_the_same_conditions(data, file, conditions, wanted):
    wanted = [f"demo_{number}" for number in wanted]
    data(f"filter demos.hdf5 chosen {conditions} -o out.hdf5")
    assert masks_of("out.hdf5")["chosen"] == wanted
    assert demos_of("out.hdf5") == ["demo_0", "demo_1", "demo_2", "demo_3"]
    data(f"subset demos.hdf5 {conditions} -o part.hdf5")
    assert demos_of("part.hdf5") == wanted
    left = [demo for demo in ("demo_1", "demo_3") if demo in wanted]
    with h5py.File("part.hdf5") as new, h5py.File(file) as old:
        assert ("mask" in new) == bool(left)
        assert new["data"].attrs["total"] == sum(5 + 5 * int(demo[-1]) for demo in wanted)
        assert new["data"].attrs["note"] == "kept"
        for demo in wanted:
            same_demo(old["data"][demo], new["data"][demo])
    assert not left or masks_of("part.hdf5") == {"mine": left}


def test_drawn_demos_follow_the_seed(data, file):
    drawn = set()
    for seed in range(6):
        data(f"subset demos.hdf5 --first 2 --seed {seed} -o {seed}.hdf5")
        drawn.add(tuple(demos_of(f"{seed}.hdf5")))
    assert len(drawn) > 1 and {len(names) for names in drawn} == {2}


def test_merge_keeps_names_that_differ_and_joins_filter_keys(data, demo_file):
    first = demo_file("a.hdf5", num_demos=2, names=["x", "y"], filter_keys={"m": [0]})
    second = demo_file("b.hdf5", num_demos=1, names=["z"], filter_keys={"m": [0]}, seed=1)
    assert data("merge a.hdf5 b.hdf5 -o out.hdf5").stdout == "out.hdf5: 3 demos of 2 files\n"
    assert masks_of("out.hdf5") == {"m": ["x", "z"]}
    with h5py.File(first) as a, h5py.File(second) as b, h5py.File("out.hdf5") as new:
        same_demo(a["data/y"], new["data/y"])
        same_demo(b["data/z"], new["data/z"])
        assert new["data"].attrs["total"] == 36
        assert new["data"].attrs["env_args"] == a["data"].attrs["env_args"]


def test_merge_numbers_demos_of_the_same_name(data, demo_file):
    demo_file("a.hdf5", num_demos=2)
    second = demo_file("b.hdf5", num_demos=2, seed=1, filter_keys={"m": [1]})
    assert "renumbered" in data("merge a.hdf5 b.hdf5 -o out.hdf5").stdout
    assert demos_of("out.hdf5") == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert masks_of("out.hdf5") == {"m": ["demo_3"]}
    with h5py.File(second) as b, h5py.File("out.hdf5") as new:
        same_demo(b["data/demo_1"], new["data/demo_3"])


def test_merge_keeps_only_names_of_joints_that_all_files_give(data, demo_file):
    image = {"feature": "observation.images.top", "names": ["height", "width", "channels"]}
    for number, order in enumerate((["a", "b"], ["b", "a"])):
        path = demo_file(f"{number}.hdf5", num_demos=1)
        entries = {
            "obs/p": {"feature": "observation.p", "shape": [2], "names": ["x", "y"]},
            "actions": {"feature": "action", "shape": [2], "names": order},
            "obs/top_image": {**image, "shape": [4, 4, 3]},
        }
        with h5py.File(path, "r+") as opened:
            opened["data"].attrs["features"] = json.dumps(entries)
    data("merge 0.hdf5 1.hdf5 -o out.hdf5")
    with h5py.File("out.hdf5") as merged:
        found = json.loads(merged["data"].attrs["features"])
    assert found["obs/p"]["names"] == ["x", "y"]
    assert found["actions"] == {"feature": "action", "shape": [2], "names": None}
    assert found["obs/top_image"]["names"] == image["names"]


def test_merge_takes_a_demonstration_for_corrections_at_each_step(data, demo_file):
    robot = {"type": 4, "env_kwargs": {}}
    demo_file("demos.hdf5", num_demos=1, env_meta={"env_name": "arm7:Arm", **robot})
    corrections = {"env_name": "folder/arm7.py:Arm", **robot}
    path = demo_file("corr.hdf5", num_demos=1, env_meta=corrections, seed=1)
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_0"]
        demo["interventions"] = np.arange(len(demo["actions"])) % 2
        demo["policy_actions"] = 0 * demo["actions"][()]
    data("merge demos.hdf5 corr.hdf5 -o out.hdf5")
    with h5py.File("out.hdf5") as new:
        demo, corrected = new["data/demo_0"], new["data/demo_1"]
        assert demo["interventions"][()].tolist() == [1] * len(demo["actions"])
        np.testing.assert_array_equal(demo["policy_actions"], demo["actions"])
        assert corrected["interventions"][()].sum() == len(corrected["actions"]) // 2
        assert not corrected["policy_actions"][()].any()


def test_merge_of_different_files(data, demo_file):
    demo_file("a.hdf5", num_demos=1)
    demo_file("fewer.hdf5", num_demos=1, obs_dims={"object": 10}, seed=1)
    demo_file("wider.hdf5", num_demos=1, action_dim=4)
    demo_file("stack.hdf5", num_demos=1, env_meta={"env_name": "Stack", "type": 1}, seed=2)
    refusals = {"fewer": "--common-keys", "wider": "'actions'", "stack": "--any-env"}
    for other, words in refusals.items():
        told = data(f"merge a.hdf5 {other}.hdf5 -o out.hdf5", code=2).output
        assert words in told and len(told.splitlines()) == 1
        assert not Path("out.hdf5").exists()
    common = "merge a.hdf5 fewer.hdf5 -o out.hdf5 --common-keys"
    data(common)
    with h5py.File("out.hdf5") as new:
        assert [sorted(demo["obs"]) for demo in new["data"].values()] == [["object"]] * 2
    assert "note" not in data(f"{common} --overwrite").output
    told = data("merge a.hdf5 stack.hdf5 -o out.hdf5 --any-env --overwrite").output
    assert "names only the environment of a.hdf5" in told  # and of evaluations on it
    assert "Stack is lost" in told
    data("merge a.hdf5 out.hdf5 -o out.hdf5 --overwrite", code=2)


def test_delete(data, file):
    data("delete demos.hdf5 --demos demo_1 --keys next_obs,obs/object -o out.hdf5")
    assert demos_of("out.hdf5") == ["demo_0", "demo_2", "demo_3"]
    assert masks_of("out.hdf5") == {"mine": ["demo_3"]}
    with h5py.File("out.hdf5") as new, h5py.File(file) as old:
        demo = new["data/demo_0"]
        assert "next_obs" not in demo and "object" not in demo["obs"]
        np.testing.assert_array_equal(demo["states"], old["data/demo_0/states"])
        assert dict(demo.attrs) == dict(old["data/demo_0"].attrs)


def test_rename_key(data, file):
    data("rename-key demos.hdf5 obs/object obs/world/thing -o out.hdf5")
    with h5py.File("out.hdf5") as new, h5py.File(file) as old:
        for group in ("obs", "next_obs"):
            renamed, before = new[f"data/demo_3/{group}"], old[f"data/demo_3/{group}"]
            assert "object" not in renamed
            np.testing.assert_array_equal(renamed["world/thing"], before["object"])


def test_the_names_of_a_lerobot_dataset_go_with_a_renamed_array(data, file):
    state, action = {"feature": "observation.state"}, {"feature": "action"}
    with h5py.File(file, "r+") as opened:
        opened["data"].attrs["features"] = json.dumps({"obs/object": state, "actions": action})
    for keys, wanted in (
        ("obs/object obs/thing", {"obs/thing": state, "actions": action}),
        ("rewards given", {"obs/object": state, "actions": action}),
    ):
        data(f"rename-key demos.hdf5 {keys} -o {keys[-5:]}.hdf5")
        with h5py.File(f"{keys[-5:]}.hdf5") as renamed:
            assert json.loads(renamed["data"].attrs["features"]) == wanted


def test_chunks_and_compression_stay(data, demo_file):
    path = demo_file(num_demos=2, image=True)
    with h5py.File(path, "r+") as opened:
        demo = opened["data/demo_1"]
        images = demo["obs/agentview_image"][()]
        del demo["obs/agentview_image"]
        layout = {"chunks": (4, 8, 6, 3), "compression": "gzip"}
        demo.create_dataset("obs/agentview_image", data=images, **layout)
        demo["obs/agentview_image"].attrs["camera"] = "front"
    data("rename-key demos.hdf5 obs/agentview_image obs/front -o out.hdf5")
    with h5py.File("out.hdf5") as new:
        kept = new["data/demo_1/obs/front"]
        assert (kept.chunks, kept.compression) == ((4, 8, 6, 3), "gzip")
        assert kept.attrs["camera"] == "front"
        np.testing.assert_array_equal(kept, images)


def test_stats_of_a_file_and_of_its_shards(call, file):
    found = call.json("dataset stats demos.hdf5")
    with h5py.File(file) as opened:
        actions = np.concatenate([opened["data"][demo]["actions"][()] for demo in opened["data"]])
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(found["actions"][name], getattr(actions, name)(axis=0))
    assert found["rewards"]["max"] == [1.0]
    assert "states" not in found
    lines = call("dataset stats demos.hdf5 --keys rewards --filter-key mine").stdout.splitlines()
    assert lines[0].split() == ["key", "mean", "std", "min", "max"]
    assert lines[1].split() == ["rewards", "0", "0.2", "0.4", "0", "1"]  # 1 of 10 and 5 of 20
    call("dataset shard demos.hdf5 --out shards --per-shard 2")
    of_file, of_shards = (
        call.json(f"dataset stats {path} --filter-key mine") for path in ("demos.hdf5", "shards")
    )
    assert of_shards.keys() == of_file.keys()
    for key, numbers in of_file.items():
        for name in ("mean", "std", "min", "max"):
            assert of_shards[key][name] == pytest.approx(numbers[name], rel=1e-6, abs=1e-9), key


def test_shards_and_their_index(data, file):
    assert data("shard demos.hdf5 --out shards --per-shard 2").stdout.startswith(
        "shards: 2 shards, "
    )
    names = sorted(path.name for path in Path("shards").iterdir())
    assert names == ["000.hdf5", "001.hdf5", "index.json"]
    assert "exists already" in data("index shards", code=2).output
    before = Path("shards/index.json").read_text()
    data("index shards --overwrite")
    assert Path("shards/index.json").read_text() == before
    told = data("doctor shards", code=2).output
    assert "is a folder of shards with an index" in told
    assert "imitate dataset merge" in told
