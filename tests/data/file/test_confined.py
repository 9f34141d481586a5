"""Files that lead out of themselves are refused by everything that reads them."""

import ast
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import imitate
from imitate.cli.main import app
from imitate.data import DatasetFile, DatasetWriter, SequenceDataset
from imitate.data.file.confined import ConfinedFile, OutsideFileError
from imitate.data.file.extents import Extents
from imitate.errors import DatasetError

SECRET = b"the quick brown fox jumps over it" * 4
KEY = "data/demo_0/obs/object"


def external_link(file, folder):
    file[KEY] = h5py.ExternalLink(str(folder / "other.hdf5"), "/data/demo_0/obs/object")


def external_group(file, folder):
    del file["data/demo_0/obs"]
    file["data/demo_0/obs"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/data/demo_0/obs")


def external_demo(file, folder):
    del file["data/demo_0"]
    file["data/demo_0"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/data/demo_0")


def soft_link_to_external(file, folder):
    file["aside"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/")
    file[KEY] = h5py.SoftLink("/aside/data/demo_0/obs/object")


def relative_soft_link(file, folder):
    file["data/demo_0/obs/aside"] = h5py.ExternalLink(
        str(folder / "other.hdf5"), "/data/demo_0/obs/object"
    )
    file[KEY] = h5py.SoftLink("./aside")


def raw_storage(file, folder):
    file.create_dataset(
        KEY, (12, 10), dtype="u1", external=[(str(folder / "secret"), 0, len(SECRET))]
    )


def virtual(file, folder):
    layout = h5py.VirtualLayout((12, 10), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "data/demo_0/obs/object", (12, 10))
    file.create_virtual_dataset(KEY, layout)


WAYS = [
    external_link,
    external_group,
    external_demo,
    soft_link_to_external,
    relative_soft_link,
    raw_storage,
    virtual,
]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def leading_out(request, tmp_path, demo_file):
    """A file one of whose objects lies in another file that exists."""
    demo_file("other.hdf5", seed=1)
    (tmp_path / "secret").write_bytes(SECRET)
    path = demo_file("bad.hdf5", next_obs=False)
    with h5py.File(path, "r+") as file:
        del file[KEY]
        request.param(file, tmp_path)
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result, code=2):
    assert result.exit_code == code, result.output
    assert "another file" in result.output or "other files" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("key", ["obs/object", "./obs/object", "obs//object"])
def test_no_value_of_another_file_is_read(leading_out, key):
    with DatasetFile(leading_out) as file, pytest.raises(OutsideFileError, match="bad.hdf5"):
        file.read("demo_0", key)


def test_the_way_past_hdf5_refuses_too(leading_out):
    with (
        DatasetFile(leading_out) as file,
        Extents(file) as extents,
        pytest.raises(OutsideFileError),
    ):
        extents.read("demo_0", "obs/object", 0, 4)


def test_a_key_that_leads_out_is_not_left_out_in_silence(leading_out):
    with DatasetFile(leading_out) as file, pytest.raises(OutsideFileError):
        file.keys("demo_0")


@pytest.mark.parametrize("mode", ["all", "low_dim", None])
def test_training_refuses(leading_out, mode):
    with pytest.raises(OutsideFileError):
        SequenceDataset(leading_out, obs_keys=("object",), hdf5_cache_mode=mode)


def test_train_command_refuses(leading_out, tmp_path):
    config = {
        "algo_name": "bc",
        "train": {"output_dir": str(tmp_path / "runs")},
        "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
    }
    (tmp_path / "bc.json").write_text(json.dumps(config))
    refused(run("train", "--config", tmp_path / "bc.json", "--dataset", leading_out))


def test_info_refuses(leading_out):
    refused(run("info", leading_out))


def test_doctor_reports_an_error(leading_out):
    refused(run("dataset", "doctor", leading_out), code=3)


def test_report_says_it(leading_out, tmp_path):
    result = run("dataset", "report", leading_out, "--out", tmp_path / "page.html")
    page = tmp_path / "page.html"
    said = result.output + (page.read_text() if page.exists() else "")
    assert "another file" in said or "other files" in said
    assert "the quick brown fox" not in said


def test_statistics_refuse(leading_out):
    refused(run("dataset", "stats", leading_out, "--keys", "obs/object"))


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "bad.hdf5", "out.hdf5", "--from", "robomimic"),
        ("convert", "bad.hdf5", "out.hdf5"),
        ("subset", "bad.hdf5", "--demos", "demo_0", "--out", "out.hdf5"),
        ("delete", "bad.hdf5", "--keys", "obs/robot0_eef_pos", "--out", "out.hdf5"),
        ("split", "bad.hdf5", "--out", "out.hdf5"),
        ("merge", "bad.hdf5", "other.hdf5", "--out", "out.hdf5"),
        ("merge", "other.hdf5", "bad.hdf5", "--common-keys", "--out", "out.hdf5"),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, tuple) else None,
)
def test_no_copy_is_made(leading_out, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    refused(run("dataset", *words))
    assert not (tmp_path / "out.hdf5").exists()


def test_a_link_beside_the_demos_is_not_copied_on(demo_file, tmp_path):
    other, path = demo_file("other.hdf5"), demo_file("bad.hdf5")
    with h5py.File(path, "r+") as file:
        file["notes/more"] = h5py.ExternalLink(str(other), "/data")
    refused(run("dataset", "subset", path, "--first", "2", "--out", tmp_path / "out.hdf5"))


def test_masks_of_another_file_are_refused(demo_file):
    other, path = demo_file("other.hdf5", filter_keys={"train": [0]}), demo_file("bad.hdf5")
    with h5py.File(path, "r+") as file:
        file["mask"] = h5py.ExternalLink(str(other), "/mask")
    before = other.read_bytes()
    refused(run("info", path))
    refused(run("dataset", "split", path, "--in-place"))
    assert other.read_bytes() == before


def test_nothing_is_appended_to_another_file(demo_file):
    other = demo_file("other.hdf5")
    before = other.read_bytes()
    path = other.with_name("bad.hdf5")
    with h5py.File(path, "w") as file:
        file["data"] = h5py.ExternalLink(str(other), "/data")
    with pytest.raises(DatasetError):
        DatasetWriter(path, {}, append=True)
    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "form", ["d4rl", "libero", "aloha", "robosuite", "mimicgen", "d3rlpy", "minari"]
)
def test_readers_of_other_formats_refuse(tmp_path, form):
    """Each format's first array is replaced by a link to itself in another file."""
    (tmp_path / "other.hdf5").write_bytes(b"")
    path = tmp_path / "dataset"
    if form == "minari":
        (path / "data").mkdir(parents=True)
        (path / "data" / "metadata.json").write_text("{}")
    inner = path / "data" / "main_data.hdf5" if path.is_dir() else path
    with h5py.File(inner, "w") as file:
        for key in _FOREIGN[form]:
            file[key] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/x")
    result = run("dataset", "convert", path, tmp_path / "out.hdf5", "--from", form)
    refused(result)


_FOREIGN = {
    "d4rl": ("observations", "actions", "rewards", "terminals", "timeouts"),
    "libero": ("data",),
    "aloha": ("action", "observations"),
    "robosuite": ("data",),
    "mimicgen": ("data",),
    "d3rlpy": ("observations", "actions", "rewards", "terminals"),
    "minari": ("episode_0/actions",),
}


def test_soft_and_hard_links_within_the_file_are_read(demo_file):
    path = demo_file(next_obs=False)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/soft"] = h5py.SoftLink("object")
        file["data/demo_0/obs/hard"] = file["data/demo_0/obs/object"]
    with DatasetFile(path) as file:
        values = file.read("demo_0", "obs/object")
        np.testing.assert_array_equal(file.read("demo_0", "obs/soft"), values)
        np.testing.assert_array_equal(file.read("demo_0", "obs/hard"), values)


def test_links_without_end_are_an_error(demo_file):
    path = demo_file()
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/first"] = h5py.SoftLink("second")
        file["data/demo_0/obs/second"] = h5py.SoftLink("first")
        file["data/demo_1/obs/again"] = file["data/demo_1"]
    with DatasetFile(path) as file:
        with pytest.raises(DatasetError, match="soft links form a loop"):
            file.read("demo_0", "obs/first")
        with pytest.raises(DatasetError, match="groups are nested without end"):
            file.keys("demo_1")


def test_names_are_shown_without_control_characters(demo_file):
    path = demo_file()
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/\x1b[31mred"] = h5py.ExternalLink("\x1b[2J", "/x")
    with DatasetFile(path) as file, pytest.raises(OutsideFileError) as error:
        file.keys("demo_0")
    assert "\x1b" not in str(error.value)


def test_files_that_exist_are_opened_in_one_way_only():
    """``h5py.File`` itself is for files that are made anew."""
    opened = []
    for source in Path(imitate.__file__).parent.rglob("*.py"):
        text = source.read_text()
        for node in ast.walk(ast.parse(text)) if "h5py.File(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "h5py.File":
                mode = node.args[1] if len(node.args) > 1 else None
                if not (isinstance(mode, ast.Constant) and mode.value == "w"):
                    opened.append(f"{source}:{node.lineno}")
    assert opened == []


def test_a_confined_file_is_a_group_like_any_other(demo_file):
    with ConfinedFile(demo_file(), "r") as file:
        assert isinstance(file["data"], h5py.Group)
        assert "nothing" not in file["data"]
        assert file.get("data/nothing") is None
        assert [key for key, _ in file["data"].items()] == list(file["data"])
