"""The catalogue of public files: complete entries, names that are found, nothing invented."""

import hashlib
import json
import re
from pathlib import PurePosixPath

import h5py
import numpy as np
import pytest

from imitate.config import load_config
from imitate.data.download.catalogue import (
    Downloaded,
    PublicFile,
    catalogue_path,
    chosen,
    download_advice,
    download_public,
    load_catalogue,
)
from imitate.errors import ConfigError, DatasetError, UserError
from imitate.train.setup import resolve
from tests.demo_files import episode, write_demos
from tests.refusals import refused

FILES = load_catalogue()


def test_every_file_of_robomimic_and_mimicgen_is_there():
    count = {}
    for file in FILES:
        count.setdefault(file.name.split("/")[0], []).append(file.name)
    # robomimic: 5 ph, 4 mh raw and low_dim, 2 mg in three forms, paired in two, 3 real; MimicGen: 12 + 26 + 2 + 16 + 6.
    assert {key: len(names) for key, names in count.items()} == {
        "robomimic": 10 + 8 + 6 + 2 + 3,
        "mimicgen": 62,
    }


def test_the_schema_of_the_file():
    tree = json.loads(catalogue_path().read_text())
    assert set(tree) == {"version", "about", "sources", "files"}
    for source in tree["sources"].values():
        assert set(source) == {"title", "homepage", "licence", "base_url"}
        assert source["base_url"].startswith("http") and source["base_url"].endswith("/")
    required = {"name", "source", "path", "size_bytes", "about_bytes", "sha256", "horizon"}
    for entry in tree["files"]:
        assert required <= set(entry) <= required | {"note"}
        assert entry["size_bytes"] is None or entry["about_bytes"] is None


def test_entries():
    for file in FILES:
        assert re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)+", file.name)
        assert file.url.startswith("http") and file.url.endswith(".hdf5")
        assert not file.place.is_absolute() and ".." not in file.place.parts
        assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.size_bytes is None or file.size_bytes > 10**6
        assert 400 <= file.horizon <= 1400
    for name in ("name", "place", "url"):
        assert len({getattr(file, name) for file in FILES}) == len(FILES)


def test_the_first_file_of_every_tutorial():
    (file,) = chosen(FILES, ["robomimic/lift/ph/low_dim"])
    assert str(file.place) == "robomimic/lift/ph/low_dim_v15.hdf5"
    assert (file.size_bytes, file.licence, file.horizon) == (21084088, "MIT", 400)
    assert file.url.endswith("/v1.5/lift/ph/low_dim_v15.hdf5")


def test_another_catalogue_and_another_server(tmp_path):
    entry = {"name": "a/b/c", "source": "s", "path": "v/x.hdf5", "size_bytes": 5, "about_bytes": 6}
    source = {"base_url": "http://host/data/", "licence": "MIT"}
    tree = {
        "version": 1,
        "sources": {"s": source},
        "files": [{**entry, "sha256": "0", "horizon": 7}],
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps(tree))
    (file,) = load_catalogue(path)
    assert (file.url, str(file.place)) == ("http://host/data/v/x.hdf5", "a/b/x.hdf5")
    assert (file.size_bytes, file.about_bytes, file.sha256, file.horizon, file.note) == (
        5,
        6,
        "0",
        7,
        None,
    )
    for address in ("http://own", "http://own/"):
        assert load_catalogue(path, address)[0].url == "http://own/v/x.hdf5"
    path.write_text(json.dumps({**tree, "version": 2}))
    with refused(
        f"{path}: the catalogue has version 2, but this imitate reads version 1", error=UserError
    ):
        load_catalogue(path)
    assert catalogue_path().name == "catalogue.json" and catalogue_path().is_file()


def test_patterns_take_each_file_once():
    names = [file.name for file in chosen(FILES, ["robomimic/*/ph/low_dim", "robomimic/lift/*"])]
    assert len(names) == len(set(names)) == 5 + 6
    assert names[0] == "robomimic/lift/ph/low_dim"


def test_names_that_are_not_there():
    with pytest.raises(UserError, match=r"did you mean 'robomimic/lift/\*' \(7 files\)"):
        chosen(FILES, ["robomimic/lift"])
    with pytest.raises(UserError, match="did you mean 'mimicgen/core/stack_d1'"):
        chosen(FILES, ["mimicgen/core/stakc_d1"])


# ---- advice where a public file is missing -------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "datasets/lift/ph/low_dim_v15.hdf5",
            "`imitate dataset download robomimic/lift/ph/low_dim` downloads it: then give "
            "--dataset datasets/robomimic/lift/ph/low_dim_v15.hdf5",
        ),
        (
            "datasets/can/mh/image_v15.hdf5",
            "download robomimic/can/mh/low_dim` downloads its demonstr",
        ),
        ("datasets/can/mh/low_dim_abs.hdf5", "`imitate dataset actions --to absolute"),
        (
            "lift/ph/low_dim_v15.hdf5",
            "`imitate dataset download robomimic/lift/ph/low_dim` downloads",
        ),
        ("own.hdf5", None),
        ("ph/own.hdf5", None),
        ("/data/monday/ph/low_dim_v15.hdf5", None),
    ],
)
def test_the_command_for_a_public_file(path, words):
    advice = download_advice(path)
    assert advice is None if words is None else words in advice


def test_a_training_without_its_public_data_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}/datasets/lift/ph/low_dim_v15.hdf5"
    words = "train.data.0.path: no file|imitate dataset download robomimic/lift/ph/low_dim"
    with refused(words, path, error=ConfigError):
        resolve(load_config("paper/what_matters/lift_ph/bc_rnn"), None, None)


# ---- files that are there already ------------------------------------------------------------------


def public(url="http://host/a.hdf5", **known):
    parts = {"size_bytes": None, "about_bytes": None, "sha256": None, "horizon": 1, **known}
    return PublicFile("a/b", url, PurePosixPath("a.hdf5"), "MIT", **parts)


def test_a_file_that_is_there_is_verified(tmp_path):
    path = write_demos(tmp_path / "a.hdf5", [episode(2, {"s": np.zeros((2, 1))})])
    size, digest = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    for known, verified in (
        ({}, "structure"),
        ({"size_bytes": size}, "size"),
        ({"sha256": digest}, "sha256"),
    ):
        found = download_public(public(**known), path)
        assert found == Downloaded("a/b", str(path), size, digest, verified, 0, 0)
    for known, words in (
        ({"size_bytes": size + 1}, f"than 'a/b' ({size + 1} bytes, SHA-256 ?): move it away"),
        ({"sha256": "0"}, f"({size} bytes, SHA-256 {digest}) than 'a/b' (? bytes, SHA-256 0)"),
    ):
        with refused(f"{path}: exists already, with other content", words, error=DatasetError):
            download_public(public(**known), path)


def test_a_file_that_is_there_has_a_demo_with_actions(tmp_path):
    path = write_demos(tmp_path / "a.hdf5", [episode(2, {"s": np.zeros((2, 1))})])
    with h5py.File(path, "a") as file:
        del file["data/demo_0/actions"]
    with refused(f"{path}: |demo_0", error=DatasetError):
        download_public(public(), path)
    with h5py.File(path, "a") as file:
        del file["data/demo_0"]
    with refused(f"{path}: contains no demo", error=DatasetError):
        download_public(public(), path)


@pytest.mark.parametrize("url", ["ftp://host/a.hdf5", "file:///a.hdf5", "a.hdf5"])
def test_an_address_of_another_kind_is_refused(tmp_path, url):
    with refused(f"{url}: not an address that begins with http", error=DatasetError):
        download_public(public(url), tmp_path / "a.hdf5")
    assert list(tmp_path.iterdir()) == []
