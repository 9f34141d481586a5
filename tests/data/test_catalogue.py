"""The catalogue of public files: complete entries, names that are found, nothing invented."""

import json
import re

import pytest

from imitate.data.catalogue import catalogue_path, chosen, load_catalogue
from imitate.errors import UserError

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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_entry(file):
    assert re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)+", file.name)
    assert file.url.startswith("http") and file.url.endswith(".hdf5")
    assert not file.place.is_absolute() and ".." not in file.place.parts
    assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    assert file.size_bytes is None or file.size_bytes > 10**6
    assert 400 <= file.horizon <= 1400


def test_names_and_places_are_distinct():
    assert len({file.name for file in FILES}) == len(FILES)
    assert len({file.place for file in FILES}) == len(FILES)
    assert len({file.url for file in FILES}) == len(FILES)


def test_the_first_file_of_every_tutorial():
    (file,) = chosen(FILES, ["robomimic/lift/ph/low_dim"])
    assert str(file.place) == "robomimic/lift/ph/low_dim_v15.hdf5"
    assert (file.size_bytes, file.licence, file.horizon) == (21084088, "MIT", 400)
    assert file.url.endswith("/v1.5/lift/ph/low_dim_v15.hdf5")


def test_another_server():
    (file,) = chosen(load_catalogue(base_url="http://here:1/x"), ["mimicgen/core/stack_d0"])
    assert file.url == "http://here:1/x/core/stack_d0.hdf5"


def test_patterns_take_each_file_once():
    names = [file.name for file in chosen(FILES, ["robomimic/*/ph/low_dim", "robomimic/lift/*"])]
    assert len(names) == len(set(names)) == 5 + 6
    assert names[0] == "robomimic/lift/ph/low_dim"


def test_names_that_are_not_there():
    with pytest.raises(UserError, match=r"did you mean 'robomimic/lift/\*' \(7 files\)"):
        chosen(FILES, ["robomimic/lift"])
    with pytest.raises(UserError, match="did you mean 'mimicgen/core/stack_d1'"):
        chosen(FILES, ["mimicgen/core/stakc_d1"])
