"""Bundles that are damaged, changed, foreign or malicious are refused in one line."""

import json
import math
import os
import zipfile

import numpy as np
import pytest

from imitate.deploy.bundle import BundlePolicy, archive, is_bundle
from imitate.deploy.bundle.archive import ArrayStore, Bundle, read_bundle, write_bundle
from imitate.deploy.bundle.spec import BundleSpec
from imitate.errors import BundleError
from tests.deploy.bundle import bundles
from tests.refusals import refused


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return bundles.small_bundle(tmp_path_factory.mktemp("bundle") / "good.zip")


def refuse(path, words):
    with refused(words, path, error=BundleError):
        BundlePolicy(path)


def test_a_good_one_is_read(good):
    assert is_bundle(good)
    assert read_bundle(good).description["schema"]["action_dim"] == bundles.AC_DIM
    BundlePolicy(good)


@pytest.fixture(scope="module")
def parts(good):
    return bundles.parts_of(good)


def test_what_is_no_bundle(tmp_path):
    other = tmp_path / "other.zip"
    bundles.write_parts(other, {"data.pkl": b"x"})
    assert not any(map(is_bundle, (tmp_path, tmp_path / "absent.zip", other)))
    refuse(other, "contains data.pkl, but a bundle contains bundle.json, policy.onnx, arrays.bin")
    refuse(tmp_path / "absent.zip", "No such file")
    (device := tmp_path / "device.zip").symlink_to("/dev/zero")
    assert not is_bundle(device)
    refuse(device, "not a regular file")
    other.write_bytes(b"no zip")
    refuse(other, "not a zip file")


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("bundle.json", lambda data: data.replace(b'"rate_hz": 20.0', b'"rate_hz": 40.0'), "was changed after"),
        ("bundle.json", lambda data: b"[" * 10**6, ""),  # nested too deep: it is no JSON, or cannot be read
        ("policy.onnx", lambda data: data[:-9] + b"x" + data[-8:], "does not match bundle.json"),
        ("arrays.bin", lambda data: data[:-1], "does not match bundle.json"),
        ("../evil", lambda data: b"", "a bundle contains"),
    ],
)  # fmt: skip
def test_a_part_that_was_changed_or_added(tmp_path, parts, part, change, words):
    changed = change(parts.get(part, b"x"))
    assert changed != parts.get(part)
    bundles.write_parts(tmp_path / "b.zip", {**parts, part: changed})
    refuse(tmp_path / "b.zip", words)


def test_compressed_and_repeated_parts_are_refused(tmp_path, parts):
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {**parts, "arrays.bin": bytes(10**7)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    refuse(path, "is compressed, which is not allowed in a bundle")
    bundles.write_parts(path, parts)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("policy.onnx", b"other")
    refuse(path, "a bundle contains")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(tmp_path, good, share):
    data = good.read_bytes()
    (tmp_path / "b.zip").write_bytes(data[: int(share * len(data))])
    refuse(tmp_path / "b.zip", "cannot be read as a bundle")


@pytest.mark.parametrize(("place", "bits", "known"), [(8, 1, True), (6, 99, False)])
def test_an_encrypted_or_a_newer_zip(tmp_path, good, place, bits, known):
    data = bytearray(good.read_bytes())
    data[data.find(b"PK\x01\x02") + place] |= bits
    path = tmp_path / "b.zip"
    path.write_bytes(data)
    assert is_bundle(path) is known
    refuse(path, "cannot be read as a bundle")


def test_a_flipped_bit_anywhere(tmp_path, good):
    """It is refused, or is where nothing is read."""
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


def rewritten(path, good, arrays=None, **changes):
    """A bundle that is whole, with another description or other arrays."""
    bundle = read_bundle(good)
    own = ("format", "parts")
    description = {k: v for k, v in bundle.description.items() if k not in own}
    arrays = arrays or bundle.arrays
    write_bundle(Bundle({**description, **changes}, bundle.network, arrays), path)
    return path


def test_a_whole_bundle_that_this_version_cannot_check_is_refused(tmp_path, good):
    path, bundle = tmp_path / "b.zip", read_bundle(good)
    rewritten(path, good, format_version=2)
    refuse(path, "has format version 2; this imitate reads version 1")
    checks = bundle.description["checks"]
    path.unlink()
    refuse(rewritten(path, good, checks=checks[:2]), "fewer than 3 recorded actions")
    path.unlink()
    arrays, offset = bytearray(bundle.arrays), checks[1]["actions"]["offset"]
    wrong = np.frombuffer(arrays, np.float32, 1, offset) + np.float32(0.01)
    arrays[offset : offset + 4] = wrong.tobytes()
    rewritten(path, good, bytes(arrays))
    refuse(path, "do not reproduce the recorded actions here (check 1: difference 0.01,")


def memory(dtype="float32", shape=(1,), offset=0):
    return {"memory": {"h": {"dtype": dtype, "shape": list(shape), "offset": offset}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": None},
        *({"frames": frames} for frames in ("many", 10**9)),
        {"execution": {"size": 4, "surprise": 1}},
        *({"execution": {"size": size}} for size in ("4", 10**12)),
        {"execution": {"size": 4, "execute": 9}},
        {"execution": {"size": 4, "execute": 2, "latency": 3}},
        {"execution": {"size": 4, "temporal_ensemble": "a"}},
        *({"noise": {"normal": count, "exponential": 0}} for count in (-1, 10**12)),
        memory(dtype="object"),
        memory(offset=-4),
        *(memory(shape=shape) for shape in ([2**40], [0, 10**30], [1] * 100)),
        *({"checks": checks} for checks in ([{}, {}, {}], [1, 2, 3])),
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


SMALL = {"action_dim": 1, "action_low": [0.5], "action_high": [0.5], "rate_hz": 0.5}
EXECUTION = {"size": 1, "execute": 1, "temporal_ensemble": None, "latency": 0}
MOST = 10**8


def described(good, schema=(), **changes):
    """The specification of a bundle for one number, with changes."""
    saved = read_bundle(good).description
    schema = {**saved["schema"], **SMALL, **dict(schema)}
    return BundleSpec.from_dict({**saved, "schema": schema, "execution": EXECUTION, **changes})


def test_the_least_and_the_largest_sizes_are_taken(good):
    spec = described(good, frames=1, noise={"normal": 0, "exponential": MOST})
    assert (spec.execution.size, spec.schema.rate_hz, spec.noise.exponential) == (1, 0.5, MOST)
    whole = {**EXECUTION, "size": 5, "execute": 2, "latency": 3, "temporal_ensemble": -0.5}
    assert described(good, execution=whole).execution.temporal_ensemble == -0.5
    open_ended = described(good, {"action_low": [None], "action_high": [None]})
    assert open_ended.schema.action_low == (-math.inf,)
    assert open_ended.to_dict()["schema"]["action_high"] == [None]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frames": 0}, "frames in bundle.json is 0"),
        ({"noise": {"normal": MOST + 1, "exponential": 0}}, "normal in bundle.json is 1"),
        ({"noise": {"normal": 0, "exponential": -1}}, "exponential in bundle.json is -1"),
        *(
            (
                {"execution": {**EXECUTION, key: least - 1}},
                f"{key} in bundle.json is {least - 1}",
            )
            for key, least in (("size", 1), ("execute", 1), ("latency", 0))
        ),
        ({"schema": {"action_dim": 0}}, "action_dim in bundle.json is 0"),
        ({"schema": {"action_low": [0.5, 0.5]}}, "2 limits, but actions have 1 numbers"),
        ({"schema": {"action_high": []}}, "0 limits, but actions have 1 numbers"),
    ],
)
def test_sizes_beyond_them_are_refused(good, changes, words):
    with pytest.raises(BundleError, match=words):
        described(good, **changes)


@pytest.mark.parametrize("field", ["shape", "offset"])
def test_an_infinite_place_of_an_array(field):
    place = {"dtype": "float32", "shape": [1], "offset": 0}
    place[field] = [math.inf] if field == "shape" else math.inf
    with pytest.raises(BundleError, match="a reference to an array"):
        Bundle({}, b"", bytes(8)).array(place)


@pytest.mark.parametrize("depth", [*range(900, 1000, 5), 10**5])
def test_a_description_that_nests_too_deep(tmp_path, depth):
    """At some depth it can be read and not written."""
    text = b'{"format": "imitate-bundle", "format_version": 1, "a": ' + b"[" * depth + b"]" * depth
    path = tmp_path / "b.zip"
    bundles.write_parts(path, {"bundle.json": text + b"}", "policy.onnx": b"", "arrays.bin": b""})
    with pytest.raises(BundleError):
        read_bundle(path)


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


def test_parts_and_arrays_by_hand(tmp_path, monkeypatch):
    assert archive.MOST_BYTES == {
        "bundle.json": 16_777_216,
        "policy.onnx": 2_147_483_647,
        "arrays.bin": 1_073_741_824,
    }
    store = ArrayStore()
    first = store.add(np.array([[1.0, 2.0]], np.float32))
    second = store.add(np.array([3, 4], np.int64)[::-1])
    assert first == {"dtype": "float32", "shape": [1, 2], "offset": 0}
    assert second == {"dtype": "int64", "shape": [2], "offset": 8}
    path = tmp_path / "a.zip"
    write_bundle(Bundle({"own": 1}, b"net", store.to_bytes()), path)
    with zipfile.ZipFile(path) as file:
        entries = [(entry.filename, entry.date_time) for entry in file.infolist()]
        description = json.loads(file.read("bundle.json"))
    date = (1980, 1, 1, 0, 0, 0)
    assert entries == [(name, date) for name in ("bundle.json", "policy.onnx", "arrays.bin")]
    assert (description["format"], description["format_version"]) == ("imitate-bundle", 1)
    assert {name: part["bytes"] for name, part in description["parts"].items()} == {
        "policy.onnx": 3,
        "arrays.bin": 24,
    }
    found = read_bundle(path)
    assert not found.array(first).flags.writeable
    assert found.array(first).tolist() == [[1.0, 2.0]] and found.array(second).tolist() == [4, 3]
    monkeypatch.setitem(archive.MOST_BYTES, "arrays.bin", 24)
    write_bundle(Bundle({}, b"", store.to_bytes()), tmp_path / "b.zip")
    monkeypatch.setitem(archive.MOST_BYTES, "arrays.bin", 23)
    with refused("arrays.bin would have 24 bytes|at most 23", error=BundleError):
        write_bundle(Bundle({}, b"", store.to_bytes()), tmp_path / "c.zip")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"shape": [0]}, None),
        ({"shape": [1] * 8}, None),
        ({"offset": 16}, None),
        ({"offset": 17}, "reaches beyond the end of arrays.bin"),
        ({"shape": [4]}, "reaches beyond the end of arrays.bin"),
        ({"shape": [0, 25]}, "reaches beyond the end of arrays.bin"),
        ({"shape": [0, 24]}, None),
        ({"shape": [1] * 9}, "invalid array"),
        ({"shape": [-1]}, "invalid array"),
        ({"offset": -1}, "invalid array"),
        ({"dtype": "object"}, "invalid array of type object and shape (1,) at byte 0"),
        ({"shape": None}, "a reference to an array lacks"),
        ({"offset": float("inf")}, "a reference to an array lacks"),
    ],
)
def test_references_to_arrays(change, words):
    bundle = Bundle({}, b"", bytes(24))
    reference = {"dtype": "float64", "shape": [1], "offset": 0, **change}
    if words is None:
        assert bundle.array(reference).shape == tuple(reference["shape"])
        return
    with refused(words, error=BundleError):
        bundle.array(reference)
