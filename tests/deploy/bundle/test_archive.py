"""Bundles that are damaged, changed, foreign or malicious are refused in one line."""

import json
import math
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from imitate.deploy.bundle import BundlePolicy, is_bundle
from imitate.deploy.bundle.archive import ArrayStore, Bundle, read_bundle, write_bundle
from imitate.deploy.bundle.spec import BundleSpec
from imitate.errors import BundleError
from tests.deploy.bundle import bundles


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return bundles.small_bundle(tmp_path_factory.mktemp("bundle") / "good.zip")


def refused(path, words):
    with pytest.raises(BundleError, match=words) as raised:
        BundlePolicy(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_good_one_is_read(good):
    assert is_bundle(good)
    bundle = read_bundle(good)
    assert bundle.description["schema"]["action_dim"] == bundles.AC_DIM
    BundlePolicy(good)


def test_what_is_no_bundle(tmp_path, good):
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "absent.zip")
    other = tmp_path / "other.zip"
    bundles.write_parts(other, {"data.pkl": b"x"})
    assert not is_bundle(other)
    refused(other, "has data.pkl; a bundle has bundle.json, policy.onnx, arrays.bin")
    refused(tmp_path / "absent.zip", "No such file")
    other.write_bytes(b"no zip")
    refused(other, "not a zip file")


@pytest.mark.parametrize("part", ["bundle.json", "policy.onnx", "arrays.bin"])
def test_a_part_that_was_changed(tmp_path, good, part):
    parts = bundles.parts_of(good)
    changed = {
        "bundle.json": parts["bundle.json"].replace(b'"rate_hz": 20.0', b'"rate_hz": 40.0'),
        "policy.onnx": parts["policy.onnx"][:-9] + b"x" + parts["policy.onnx"][-8:],
        "arrays.bin": parts["arrays.bin"][:-1],
    }
    assert changed[part] != parts[part]
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {**parts, part: changed[part]})
    words = "was changed after" if part == "bundle.json" else "is not what bundle.json describes"
    refused(path, words)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(tmp_path, good, share):
    data = good.read_bytes()
    path = tmp_path / "b.zip"
    path.write_bytes(data[: int(share * len(data))])
    refused(path, "cannot be read as a bundle")


def test_a_flipped_bit_anywhere(tmp_path, good):
    """It is refused, or lies where nothing is read."""
    data = bytearray(good.read_bytes())
    path = tmp_path / "b.zip"
    expected = bundles.parts_of(good)
    for place in np.random.default_rng(0).integers(len(data), size=60):
        data[place] ^= 4
        path.write_bytes(data)
        try:
            bundle = read_bundle(path)
        except BundleError:
            pass
        else:
            assert bundle.network == expected["policy.onnx"]
            assert bundle.arrays == expected["arrays.bin"]
        data[place] ^= 4


def rewritten(path, good, **changes):
    """A bundle that is whole, with another description."""
    bundle = read_bundle(good)
    own = ("format", "parts")
    description = {k: v for k, v in bundle.description.items() if k not in own}
    write_bundle(Bundle({**description, **changes}, bundle.network, bundle.arrays), path)
    return path


def test_another_version(tmp_path, good):
    path = rewritten(tmp_path / "b.zip", good, format_version=2)
    refused(path, "has format version 2; this imitate reads version 1")


def test_recorded_actions_that_do_not_fit(tmp_path, good):
    bundle = read_bundle(good)
    check = bundle.description["checks"][1]
    arrays = bytearray(bundle.arrays)
    offset = check["actions"]["offset"]
    wrong = np.frombuffer(arrays, np.float32, 1, offset) + np.float32(0.01)
    arrays[offset : offset + 4] = wrong.tobytes()
    description = {k: v for k, v in bundle.description.items() if k not in ("format", "parts")}
    path = tmp_path / "b.zip"
    write_bundle(replace(bundle, description=description, arrays=bytes(arrays)), path)
    refused(path, r"do not give the recorded actions here \(check 1: 0.01 away")


def test_fewer_than_three_recorded_actions(tmp_path, good):
    checks = read_bundle(good).description["checks"][:2]
    refused(rewritten(tmp_path / "b.zip", good, checks=checks), "fewer than 3 recorded actions")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": None},
        {"execution": {"size": 4, "surprise": 1}},
        {"frames": "many"},
        {"execution": {"size": "4"}},
        {"execution": {"size": 10**12}},
        {"frames": 10**9},
        {"noise": {"normal": -1, "exponential": 0}},
        {"noise": {"normal": 10**12, "exponential": 0}},
        {"memory": {"h": {"dtype": "object", "shape": [1], "offset": 0}}},
        {"memory": {"h": {"dtype": "float32", "shape": [2**40], "offset": 0}}},
        {"memory": {"h": {"dtype": "float32", "shape": [1], "offset": -4}}},
        {"memory": {"h": {"dtype": "float32", "shape": [0, 10**30], "offset": 0}}},
        {"memory": {"h": {"dtype": "float32", "shape": [1] * 100, "offset": 0}}},
        {"execution": {"size": 4, "execute": 9}},
        {"execution": {"size": 4, "execute": 2, "latency": 3}},
        {"execution": {"size": 4, "temporal_ensemble": "a"}},
        {"checks": [{}, {}, {}]},
        {"checks": [1, 2, 3]},
    ],
)
def test_descriptions_that_make_no_sense(tmp_path, good, changes):
    path = rewritten(tmp_path / "b.zip", good, **changes)
    with pytest.raises(BundleError):
        BundlePolicy(path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("action_low", [math.nan] * 3, "limits nan to 1.0: expected low <= high"),
        ("action_low", [2.0] * 3, "limits 2.0 to 1.0: expected low <= high"),
        ("rate_hz", 0, "rate_hz is 0: expected a number above 0"),
        ("rate_hz", math.nan, "rate_hz is nan"),
        ("rate_hz", "fast", "rate_hz is 'fast'"),
        ("action_dim", math.inf, "cannot convert float infinity"),
    ],
)
def test_limits_and_rates_that_make_no_sense(good, name, value, words):
    schema = read_bundle(good).description["schema"]
    saved = {**read_bundle(good).description, "schema": {**schema, name: value}}
    with pytest.raises(BundleError, match=words):
        BundleSpec.from_dict(saved)


@pytest.mark.parametrize("field", ["shape", "offset"])
def test_an_infinite_place_of_an_array(field):
    place = {"dtype": "float32", "shape": [1], "offset": 0}
    place[field] = [math.inf] if field == "shape" else math.inf
    with pytest.raises(BundleError, match="a reference to an array"):
        Bundle({}, b"", bytes(8)).array(place)


@pytest.mark.parametrize(("place", "bits", "known"), [(8, 1, True), (6, 99, False)])
def test_an_encrypted_or_a_newer_zip(tmp_path, good, place, bits, known):
    data = bytearray(good.read_bytes())
    data[data.find(b"PK\x01\x02") + place] |= bits
    path = tmp_path / "b.zip"
    path.write_bytes(data)
    assert is_bundle(path) is known
    refused(path, "cannot be read as a bundle")


@pytest.mark.parametrize("depth", [*range(900, 1000, 5), 10**5])
def test_a_description_that_nests_too_deep(tmp_path, depth):
    """At some depth it can be read and not written."""
    text = b'{"format": "imitate-bundle", "format_version": 1, "a": ' + b"[" * depth + b"]" * depth
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {"bundle.json": text + b"}", "policy.onnx": b"", "arrays.bin": b""})
    with pytest.raises(BundleError):
        read_bundle(path)


def test_compressed_parts_are_refused_unread(tmp_path, good):
    parts = {**bundles.parts_of(good), "arrays.bin": bytes(10**7)}
    path = tmp_path / "bomb.zip"
    bundles.write_parts(path, parts, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    refused(path, "is compressed, which no bundle is")


def test_further_and_repeated_parts_are_refused(tmp_path, good):
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {**bundles.parts_of(good), "../evil": b""})
    refused(path, "a bundle has")
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for name, data in bundles.parts_of(good).items():
            archive.writestr(name, data)
        archive.writestr("policy.onnx", b"other")
    refused(path, "a bundle has")


def test_deeply_nested_json(tmp_path, good):
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {**bundles.parts_of(good), "bundle.json": b"[" * 10**6})
    refused(path, "is no JSON|cannot be read")


def test_a_failed_write_leaves_nothing(tmp_path, good, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    bundle = read_bundle(good)
    target = tmp_path / "b.zip"
    target.write_text("mine")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BundleError, match="cannot be written: No space left"):
        write_bundle(bundle, target)
    assert target.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]


def test_arrays():
    store = ArrayStore()
    given = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), np.float32), np.array([True])]
    references = [store.add(array) for array in given]
    bundle = Bundle({}, b"", store.to_bytes())
    for array, reference in zip(given, json.loads(json.dumps(references)), strict=True):
        got = bundle.array(reference)
        np.testing.assert_array_equal(got, array)
        assert got.dtype == array.dtype
        assert not got.flags.writeable
