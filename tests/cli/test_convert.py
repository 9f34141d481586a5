"""imitate dataset convert, as one calls it."""

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile

FIXTURES = Path(__file__).parents[1] / "data" / "formats" / "fixtures"


def run(*args):
    return CliRunner().invoke(app, ["dataset", "convert", *map(str, args)])


def test_the_format_is_recognised_and_the_report_printed(tmp_path):
    done = run(FIXTURES / "walker2d.hdf5", tmp_path / "new" / "walker.hdf5")
    assert done.exit_code == 0, done.output
    assert "(d4rl)" in done.stdout
    assert "4 demos, 191 steps" in done.stdout
    assert "renamed: observations -> obs/flat" in done.stdout
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["walker.hdf5"]


def test_the_report_as_json(tmp_path):
    done = run(FIXTURES / "pendulum.npz", tmp_path / "p.hdf5", "--env", "Pendulum-v1", "--json")
    report = json.loads(done.stdout)
    assert (report["source_format"], report["target_format"]) == ("imitation", "robomimic")
    assert (report["demos"], report["steps"]) == (2, 400)
    with DatasetFile(tmp_path / "p.hdf5") as file:
        assert file.env_meta["env_name"] == "Pendulum-v1"


def test_the_formats_are_listed():
    done = CliRunner().invoke(app, ["dataset", "convert", "--formats"])
    assert done.exit_code == 0
    ways = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert ways["robomimic"] == "read,"
    assert ways["d4rl"] == "read"


def test_overwriting_happens_at_the_end(tmp_path):
    target = tmp_path / "o.hdf5"
    assert run(FIXTURES / "pendulum.npz", target).exit_code == 0
    kept = target.read_bytes()
    np.savez(tmp_path / "bad.npz", obs=np.zeros((4, 2)), acts=np.array([[0.0], [np.nan]]),
             terminal=[True, True], indices=[1])  # fmt: skip
    failed = run(tmp_path / "bad.npz", target, "--overwrite")
    assert (failed.exit_code, len(failed.stderr.splitlines())) == (2, 1)
    assert target.read_bytes() == kept
    assert run(FIXTURES / "walker2d.hdf5", target, "--overwrite").exit_code == 0
    with DatasetFile(target) as file:
        assert file.env_meta["env_name"] == "Walker2d-v5"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.npz", "o.hdf5"]


def test_damage_anywhere_is_one_line(tmp_path):
    """Cut and bit-flipped files: a result or one line, never a crash."""
    random = np.random.default_rng(0)
    for name in ("walker2d.hdf5", "pendulum.npz"):
        whole = (FIXTURES / name).read_bytes()
        for number in range(20):
            broken = bytearray(whole)
            if number % 2:
                broken = broken[: random.integers(1, len(whole))]
            else:
                broken[random.integers(len(whole))] ^= 1 << random.integers(8)
            (tmp_path / name).write_bytes(broken)
            done = run(tmp_path / name, tmp_path / "o.hdf5", "--overwrite")
            assert done.exit_code in (0, 2), (name, number, done.output, done.exception)


def test_images_as_jpeg(demo_file, tmp_path):
    path = demo_file(num_demos=1, image=True)
    for storage, kind in (("jpeg", "jpeg"), ("gzip", "gzip"), ("as-source", "raw")):
        out = tmp_path / f"{storage}.hdf5"
        done = CliRunner().invoke(
            app, ["dataset", "convert", str(path), str(out), "--images", storage]
        )
        assert done.exit_code == 0, done.output
        with DatasetFile(out) as file:
            assert file.storage("demo_0", "obs/agentview_image") == kind
