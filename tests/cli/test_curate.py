"""imitate dataset split, filter, subset, merge, delete, rename-key, stats."""

import io
import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app


def run(*args):
    return CliRunner().invoke(app, ["dataset", *map(str, args)])


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


def test_split(file, tmp_path):
    out = tmp_path / "out.hdf5"
    before = file.read_bytes()
    done = run("split", file, "--out", out, "--ratio", "0.25", "--seed", "3")
    assert done.exit_code == 0
    assert done.stdout == f"{out}: train 3, valid 1\n"
    masks = masks_of(out)
    assert sorted(masks["train"] + masks["valid"]) == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert masks["mine"] == ["demo_1", "demo_3"]
    assert file.read_bytes() == before
    again = tmp_path / "again.hdf5"
    run("split", file, "--out", again, "--ratio", "0.25", "--seed", "3")
    assert masks_of(again) == masks
    with h5py.File(file) as old, h5py.File(out) as new:
        for demo in old["data"]:
            same_demo(old["data"][demo], new["data"][demo])


def test_a_folder_is_not_offered_to_be_changed_in_place(file, tmp_path):
    assert "--in-place" in run("split", file).output
    done = run("split", tmp_path)
    assert done.exit_code == 2 and "name a new file with --out" in done.output
    assert "--in-place" not in done.output


def test_split_of_a_filter_key_in_place(file):
    before = file.read_bytes()
    assert run("split", file, "--in-place", "--filter-key", "mine", "--ratio", "0.5").exit_code == 0
    masks = masks_of(file)
    assert sorted(masks["mine_train"] + masks["mine_valid"]) == ["demo_1", "demo_3"]
    assert len(masks["mine_valid"]) == 1
    with h5py.File(file) as new, h5py.File(io.BytesIO(before)) as old:
        same_demo(old["data/demo_3"], new["data/demo_3"])
    for number in range(4):
        assert run("filter", file, f"key_{number}", "--first", "2", "--in-place").exit_code == 0
    assert len(masks_of(file)) == 7
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"], "no copy for each key"
    assert file.stat().st_size < len(before) + 20_000


@pytest.mark.parametrize("where", [["--in-place"], ["--out", "new.hdf5"]])
@pytest.mark.parametrize("verb", [["split"], ["filter", "train", "--first", "1"]])
def test_filter_keys_that_are_there_are_not_replaced(demo_file, tmp_path, monkeypatch, verb, where):
    monkeypatch.chdir(tmp_path)
    file = demo_file(num_demos=6, filter_keys={"train": [0, 1, 2, 3], "valid": [4, 5]})
    before = file.read_bytes()
    words = [verb[0], file, *verb[1:], *where]
    done = run(*words)
    assert done.exit_code == 2
    assert "train 4" in done.stderr and "--overwrite" in done.stderr
    assert file.read_bytes() == before and not (tmp_path / "new.hdf5").exists()
    assert run(*words, "--overwrite").exit_code == 0
    masks = masks_of(tmp_path / "new.hdf5" if "--out" in where else file)
    assert len(masks["train"]) == (5 if verb[0] == "split" else 1)


def test_the_same_split_again_is_no_replacement(file):
    assert run("split", file, "--in-place").exit_code == 0
    before = masks_of(file)
    assert run("split", file, "--in-place").exit_code == 0
    assert masks_of(file) == before


def test_split_of_successes(demo_file):
    file = demo_file(num_demos=6)
    with h5py.File(file, "r+") as opened:
        opened["data/demo_2"].attrs["success"] = False
    done = run("split", file, "--in-place", "--seed", "1")
    assert "demo_2" in masks_of(file)["train"]
    assert "1 of the demos in train failed" in done.stderr and "--success" in done.stderr
    done = run("split", file, "--in-place", "--success", "--overwrite")
    assert done.output.split(": ", 1)[1] == "train 4, valid 1\n"
    masks = masks_of(file)
    assert "demo_2" not in masks["train"] + masks["valid"]


def test_filter_keys_are_not_written_under_a_reader(file):
    before = file.read_bytes()
    with h5py.File(file):
        done = run("split", file, "--in-place")
    assert done.exit_code == 2 and "another process reads or writes it" in done.stderr
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"]


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        (["--first", "2"], ["demo_0", "demo_1"]),
        (["--demos", "demo_3,demo_0"], ["demo_0", "demo_3"]),
        (["--success"], ["demo_0", "demo_1", "demo_3"]),
        (["--failure"], ["demo_2"]),
        (["--min-length", "10", "--max-length", "15"], ["demo_1", "demo_2"]),
        (["--min-return", "2"], ["demo_3"]),
        (["--max-return", "1"], ["demo_0", "demo_1", "demo_2"]),
        (["--filter-key", "mine", "--max-length", "10"], ["demo_1"]),
        (["--success", "--min-length", "6", "--first", "1"], ["demo_1"]),
    ],
)
def test_filter_and_subset_take_the_same_conditions(file, tmp_path, conditions, wanted):
    out, part = tmp_path / "out.hdf5", tmp_path / "part.hdf5"
    assert run("filter", file, "chosen", *conditions, "-o", out).exit_code == 0
    assert masks_of(out)["chosen"] == wanted
    assert demos_of(out) == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert run("subset", file, *conditions, "-o", part).exit_code == 0
    assert demos_of(part) == wanted
    left = [demo for demo in ("demo_1", "demo_3") if demo in wanted]
    with h5py.File(part) as new, h5py.File(file) as old:
        assert ("mask" in new) == bool(left)
        lengths = {"demo_0": 5, "demo_1": 10, "demo_2": 15, "demo_3": 20}
        assert new["data"].attrs["total"] == sum(lengths[demo] for demo in wanted)
        assert new["data"].attrs["note"] == "kept"
        for demo in wanted:
            same_demo(old["data"][demo], new["data"][demo])
    assert not left or masks_of(part) == {"mine": left}


def test_drawn_demos_follow_the_seed(file, tmp_path):
    drawn = set()
    for seed in range(6):
        out = tmp_path / f"{seed}.hdf5"
        run("subset", file, "--first", "2", "--seed", seed, "-o", out)
        assert len(demos_of(out)) == 2
        drawn.add(tuple(demos_of(out)))
    assert len(drawn) > 1


def test_merge_keeps_names_that_differ_and_joins_filter_keys(demo_file, tmp_path):
    first = demo_file("a.hdf5", num_demos=2, names=["x", "y"], filter_keys={"m": [0]})
    second = demo_file("b.hdf5", num_demos=1, names=["z"], filter_keys={"m": [0]}, seed=1)
    out = tmp_path / "out.hdf5"
    done = run("merge", first, second, "-o", out)
    assert (done.exit_code, done.stdout) == (0, f"{out}: 3 demos of 2 files\n")
    assert masks_of(out) == {"m": ["x", "z"]}
    with h5py.File(first) as a, h5py.File(second) as b, h5py.File(out) as new:
        same_demo(a["data/y"], new["data/y"])
        same_demo(b["data/z"], new["data/z"])
        assert new["data"].attrs["total"] == 36
        assert new["data"].attrs["env_args"] == a["data"].attrs["env_args"]


def test_merge_numbers_demos_of_the_same_name(demo_file, tmp_path):
    first = demo_file("a.hdf5", num_demos=2)
    second = demo_file("b.hdf5", num_demos=2, seed=1, filter_keys={"m": [1]})
    out = tmp_path / "out.hdf5"
    done = run("merge", first, second, "-o", out)
    assert "numbered anew" in done.stdout
    assert demos_of(out) == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert masks_of(out) == {"m": ["demo_3"]}
    with h5py.File(second) as b, h5py.File(out) as new:
        same_demo(b["data/demo_1"], new["data/demo_3"])


def test_merge_keeps_only_names_of_joints_that_all_files_give(demo_file, tmp_path):
    image = {"feature": "observation.images.top", "names": ["height", "width", "channels"]}
    paths = []
    for number, order in enumerate((["a", "b"], ["b", "a"])):
        path = demo_file(f"{number}.hdf5", num_demos=1)
        entries = {
            "obs/p": {"feature": "observation.p", "shape": [2], "names": ["x", "y"]},
            "actions": {"feature": "action", "shape": [2], "names": order},
            "obs/top_image": {**image, "shape": [4, 4, 3]},
        }
        with h5py.File(path, "r+") as opened:
            opened["data"].attrs["features"] = json.dumps(entries)
        paths.append(path)
    assert run("merge", *paths, "-o", tmp_path / "out.hdf5").exit_code == 0
    with h5py.File(tmp_path / "out.hdf5") as merged:
        found = json.loads(merged["data"].attrs["features"])
    assert found["obs/p"]["names"] == ["x", "y"]
    assert found["actions"] == {"feature": "action", "shape": [2], "names": None}
    assert found["obs/top_image"]["names"] == image["names"]


def test_merge_of_different_files(demo_file, tmp_path):
    first = demo_file("a.hdf5", num_demos=1)
    fewer = demo_file("b.hdf5", num_demos=1, obs_dims={"object": 10}, seed=1)
    wider = demo_file("c.hdf5", num_demos=1, action_dim=4)
    stack = demo_file("d.hdf5", num_demos=1, env_meta={"env_name": "Stack", "type": 1}, seed=2)
    out = tmp_path / "out.hdf5"
    for other, words in ((fewer, "--common-keys"), (wider, "'actions'"), (stack, "--any-env")):
        done = run("merge", first, other, "-o", out)
        assert done.exit_code == 2
        assert words in done.output
        assert len(done.output.splitlines()) == 1
        assert not out.exists()
    assert run("merge", first, fewer, "-o", out, "--common-keys").exit_code == 0
    with h5py.File(out) as new:
        assert [sorted(demo["obs"]) for demo in new["data"].values()] == [["object"]] * 2
    assert (
        "note" not in run("merge", first, fewer, "-o", out, "--common-keys", "--overwrite").output
    )
    done = run("merge", first, stack, "-o", out, "--any-env", "--overwrite")
    assert done.exit_code == 0
    assert f"names the environment of {first} alone" in done.output  # and of evaluations on it
    assert "not Stack" in done.output
    assert run("merge", first, "-o", tmp_path / "one.hdf5").exit_code == 2
    assert run("merge", first, out, "-o", out, "--overwrite").exit_code == 2


def test_delete(file, tmp_path):
    out = tmp_path / "out.hdf5"
    assert (
        run(
            "delete", file, "--demos", "demo_1", "--keys", "next_obs,obs/object", "-o", out
        ).exit_code
        == 0
    )
    assert demos_of(out) == ["demo_0", "demo_2", "demo_3"]
    assert masks_of(out) == {"mine": ["demo_3"]}
    with h5py.File(out) as new, h5py.File(file) as old:
        demo = new["data/demo_0"]
        assert "next_obs" not in demo
        assert "object" not in demo["obs"]
        np.testing.assert_array_equal(demo["states"], old["data/demo_0/states"])
        assert dict(demo.attrs) == dict(old["data/demo_0"].attrs)


def test_rename_key(file, tmp_path):
    out = tmp_path / "out.hdf5"
    done = run("rename-key", file, "obs/object", "obs/world/thing", "-o", out)
    assert done.exit_code == 0, done.output
    with h5py.File(out) as new, h5py.File(file) as old:
        for group in ("obs", "next_obs"):
            assert "object" not in new["data/demo_3"][group]
            np.testing.assert_array_equal(
                new[f"data/demo_3/{group}/world/thing"], old[f"data/demo_3/{group}/object"]
            )
    swapped = tmp_path / "swapped.hdf5"
    assert run("rename-key", file, "obs/object", "obs/robot0_eef_pos", "-o", swapped).exit_code == 2


def test_the_names_of_a_lerobot_dataset_go_with_a_renamed_array(file, tmp_path):
    state, action = {"feature": "observation.state"}, {"feature": "action"}
    with h5py.File(file, "r+") as opened:
        opened["data"].attrs["features"] = json.dumps({"obs/object": state, "actions": action})
    for old, new, wanted in (
        ("obs/object", "obs/thing", {"obs/thing": state, "actions": action}),
        ("rewards", "given", {"obs/object": state, "actions": action}),
    ):
        out = tmp_path / f"{new[-5:]}.hdf5"
        assert run("rename-key", file, old, new, "-o", out).exit_code == 0
        with h5py.File(out) as renamed:
            assert json.loads(renamed["data"].attrs["features"]) == wanted


def test_chunks_and_compression_stay(demo_file, tmp_path):
    path = demo_file(num_demos=2, image=True)
    with h5py.File(path, "r+") as opened:
        demo = opened["data/demo_1"]
        images = demo["obs/agentview_image"][()]
        del demo["obs/agentview_image"]
        demo.create_dataset(
            "obs/agentview_image", data=images, chunks=(4, 8, 6, 3), compression="gzip"
        )
        demo["obs/agentview_image"].attrs["camera"] = "front"
    out = tmp_path / "out.hdf5"
    assert run("rename-key", path, "obs/agentview_image", "obs/front", "-o", out).exit_code == 0
    with h5py.File(out) as new:
        kept = new["data/demo_1/obs/front"]
        assert (kept.chunks, kept.compression, kept.attrs["camera"]) == (
            (4, 8, 6, 3),
            "gzip",
            "front",
        )
        np.testing.assert_array_equal(kept, images)


def test_stats(file):
    done = run("stats", file, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    with h5py.File(file) as opened:
        actions = np.concatenate([opened["data"][demo]["actions"][()] for demo in opened["data"]])
    np.testing.assert_allclose(found["actions"]["mean"], actions.mean(axis=0))
    np.testing.assert_allclose(found["actions"]["std"], actions.std(axis=0))
    assert found["actions"]["min"] == actions.min(axis=0).tolist()
    assert found["actions"]["max"] == actions.max(axis=0).tolist()
    assert found["rewards"]["max"] == [1.0]
    assert "states" not in found
    lines = run("stats", file, "--keys", "rewards", "--filter-key", "mine").stdout.splitlines()
    assert lines[0].split() == ["key", "mean", "std", "min", "max"]
    assert lines[1].split() == ["rewards", "0", "0.2", "0.4", "0", "1"]  # 1 of 10 and 5 of 20


# ---- shards --------------------------------------------------------------------------------------


def test_shards_and_their_index(file, tmp_path):
    out = tmp_path / "shards"
    done = run("shard", file, "--out", out, "--demos", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{out}: 2 shards, ")
    assert sorted(path.name for path in out.iterdir()) == ["000.hdf5", "001.hdf5", "index.json"]

    again = run("index", out)
    assert again.exit_code == 2
    assert "exists already" in again.output
    before = (out / "index.json").read_text()
    assert run("index", out, "--overwrite").exit_code == 0
    assert (out / "index.json").read_text() == before


def test_stats_of_shards_are_those_of_the_file(file, tmp_path):
    out = tmp_path / "shards"
    assert run("shard", file, "--out", out, "--demos", "2").exit_code == 0

    of_file, of_shards = (
        json.loads(run("stats", path, "--json", "--filter-key", "mine").stdout)
        for path in (file, out)
    )
    assert of_shards.keys() == of_file.keys()
    for key, numbers in of_file.items():
        for name in ("mean", "std", "min", "max"):
            assert of_shards[key][name] == pytest.approx(numbers[name], rel=1e-6, abs=1e-9), key


def test_a_command_for_one_file_says_what_to_do_with_shards(file, tmp_path):
    out = tmp_path / "shards"
    assert run("shard", file, "--out", out, "--demos", "2").exit_code == 0

    done = run("doctor", out)
    assert done.exit_code == 2
    assert "is a folder of shards with an index" in done.output
    assert "imitate dataset merge" in done.output
