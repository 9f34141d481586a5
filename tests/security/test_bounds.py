"""Bounds before memory: messages, connections, checkpoints, small files."""

import contextlib
import functools
import json
import os
import pickle
import re
import resource
import shutil
import socket
import struct
import threading
import time
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import h5py
import msgpack
import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.data.batches import store
from imitate.data.batches.statistics import quantiles_of
from imitate.data.file import hdf5_format
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.quality.doctor import observations
from imitate.data.shards.folder import shards_at
from imitate.deploy.server import server as server_module
from imitate.deploy.server.server import PolicyServer
from imitate.errors import CheckpointError, ConfigError, FileError, UserError, WireError
from imitate.models.pretrained import read_weights
from imitate.policy.checkpoint import (
    algo_from_checkpoint,
    check_extent,
    checkpoint_dict,
    load_checkpoint,
    save_checkpoint,
    stored_numbers,
)
from imitate.system import memory
from imitate.system.channel.messages import MAX_OBJECTS, Jpeg, decode, encode
from imitate.system.channel.stream import Budget
from imitate.system.instructions import Instructions
from imitate.system.plain_files import MAX_DEPTH, json_value, read_json
from imitate.system.recognition import diagnosis
from imitate.system.run_folder import open_run_folder
from imitate.train.online.batches import read_whole
from imitate.train.sweep.curves import read_curves
from tests.calling import call
from tests.tiny import tiny_algo

# ---- messages ----------------------------------------------------------------------------------------


def nested(count, inner):
    """A list of lists of objects that take a byte each."""
    part = b"\xdc\x0f\xa0" + inner * 4000
    return b"\xdc" + struct.pack(">H", count) + part * count


BOMBS = {
    "empty maps": nested(400, b"\x80"),
    "empty lists": nested(400, b"\x90"),
    "numbers": nested(400, b"\x01"),
    "texts": nested(400, b"\xa0"),
    "map of many": b"\xdf" + struct.pack(">I", 2**31) + b"\x01" * 70_000,
    "list of many": b"\xdd" + struct.pack(">I", 2**32 - 1) + b"\xc0" * 70_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_message_of_too_many_parts_takes_no_memory(name):
    tracemalloc.start()
    with pytest.raises(WireError, match="parts"):
        decode(BOMBS[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_large_messages_of_few_parts_are_read():
    message = {
        "obs": {
            "a": np.zeros((2**20,)),
            "b": [1.5] * 4000,
            "c": b"x" * 70_000,
            "d": "é" * 40_000,
            "e": -1e300,
        }
    }
    read = decode(encode(message))
    np.testing.assert_array_equal(read["obs"].pop("a"), message["obs"].pop("a"))
    assert read == message
    numbers = [list(range(4000))] * (MAX_OBJECTS // 4001)
    assert decode(msgpack.packb(numbers)) == numbers


def test_the_images_of_a_message_are_bounded_together():
    image = Jpeg(np.zeros((512, 512, 3), np.uint8))
    data = encode([image] * 3)
    assert len(decode(data, 3 * 512 * 512 * 3)) == 3
    with pytest.raises(WireError, match="images of the message take more than"):
        decode(data, 3 * 512 * 512 * 3 - 1)
    reserved = []
    decode(data, 3 * 512 * 512 * 3, reserved.append)
    assert (
        reserved[1:] == [5 * 786_432, -4 * 786_432] * 3
    )  # decoding an image takes five times its size


# ---- checkpoints -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    tree = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [4]},
        "observation": {"modalities": {"obs": {"low_dim": ["a"]}}},
    }
    algo = algo_factory("bc", load_config(tree), {"a": (3,)}, 1)
    path = tmp_path_factory.mktemp("checkpoint") / "c.pth"
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata={}), path)
    return path


def weight(change):
    """Change the first weight."""

    def changed(path):
        ckpt = torch.load(path, weights_only=True)
        nets = ckpt["model"]["nets"]
        name = next(iter(nets))
        nets[name] = change(nets[name])
        torch.save(ckpt, path)

    return changed


def entries(change):
    """Change the entries of the archive: ``change(name, data)`` gives pairs of them."""

    def changed(path):
        with zipfile.ZipFile(path) as archive:
            read = [(name, archive.read(name)) for name in archive.namelist()]
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of two entries of one name
            for name, data in read:
                for pair in change(name, data):
                    archive.writestr(*pair)

    return changed


def pickled(data):
    return entries(lambda name, old: [(name, data if name.endswith("data.pkl") else old)])


def calling(function, given):
    """A pickle that calls a function of a module."""
    return b"c" + function.encode() + b"\n" + given + b"R"


def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value


def repeated(function, value, further=b"\x85"):
    """A pickle of a long value, which is given to a function 5,000 times."""
    return b"\x80\x02(" + value + b"q\x01" + calling(function, b"h\x01" + further) * 5000 + b"l."


def doubled(times):
    """Hexadecimal digits of hexadecimal digits of ... a letter."""
    digits = text(b"a")
    for codec in (b"latin1", *[b"hex"] * times):
        digits = calling("_codecs\nencode", digits + text(codec) + b"\x86")
    return b"\x80\x02" + digits + b"."


def endless(where):
    """Lists of ten lists of ten lists ..., each of which is stored once."""

    def changed(path):
        ckpt = torch.load(path, weights_only=True)
        many = ["x"] * 10
        for _ in range(30):
            many = [many] * 10
        ckpt[where]["x"] = many
        torch.save(ckpt, path)

    return changed


def behind(data):
    """Put a pickle before the archive, which torch reads in its place."""

    def changed(path):
        begin = (
            pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
        )
        path.write_bytes(begin + data + path.read_bytes())

    return changed


def listed_twice(data):
    """Append a second list of entries, with another pickle, to which the end leads those who do not compute."""

    def changed(path):
        with zipfile.ZipFile(path) as archive:
            read = [(name, archive.read(name)) for name in archive.namelist()]
        other = [(name, data if name.endswith("data.pkl") else old) for name, old in read]
        begin, lists = b"", [b"", b""]
        size = sum(46 + len(name) for name, _ in read)
        for number, (name, old) in enumerate([*read, *other]):
            form = struct.pack("<5H3L", 20, 0, 0, 0, 33, zlib.crc32(old), len(old), len(old))
            at = len(begin) + (0 if number >= len(read) else size + 22)  # Python subtracts this
            lists[number // len(read)] += (
                b"PK\1\2\x14\0" + form + struct.pack("<5HLL", len(name), 0, 0, 0, 0, 0, at)
            )
            lists[number // len(read)] += name.encode()
            begin += b"PK\3\4" + form + struct.pack("<HH", len(name), 0) + name.encode() + old
        count, other_at = len(read), len(begin) + size + 22
        end = struct.pack("<4H2LH", 0, 0, count, count, size, other_at, size)
        path.write_bytes(begin + lists[0] + b"PK\5\6" + end + lists[1])

    return changed


def before_nothing(data):
    """Replace the archive by a pickle and the end of an archive without entries."""
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0, 0, 0, 0, 0)
    heads = (0x1950A86A20F9469CFC6C, 1001, {})
    return lambda path: path.write_bytes(b"".join(pickle.dumps(x, 2) for x in heads) + data + end)


def in_another_case(record, data):
    name = record.upper()
    return entries(lambda n, d: [(n.replace(record, name), data if n.endswith(record) else d)])


def called(function, given):
    return pickled(b"\x80\x02" + calling(function, given) + b".")


LARGE, LONG = b"J\0\0\0\x40", text(b"a" * 2**17)
BYTEARRAY = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (2**33).to_bytes(5, "little") + b"\x85R."
WRONG = {
    "expanded": (weight(lambda w: torch.zeros(1).expand(2**40)), "has only 4 stored bytes"),
    "meta": (weight(lambda w: w.to("meta")), "tensor of another kind"),
    "nested": (weight(lambda w: torch.nested.nested_tensor([w, w])), "tensor of another kind"),
    "sparse": (weight(lambda w: w.to_sparse()), "tensor of another kind"),
    "quantized": (weight(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)), "tensor of another kind"),
    "complex": (weight(lambda w: w.to(torch.complex64)), "dtype torch.complex64"),
    "whole numbers": (weight(lambda w: w.to(torch.int64)), "dtype torch.int64; expected torch.float32"),
    "truth values": (weight(lambda w: w > 0), "dtype torch.bool; expected torch.float32"),
    "bytearray": (pickled(BYTEARRAY), "bytearray"),
    "bytearray in another case": (in_another_case("data.pkl", BYTEARRAY), "bytearray"),
    "bytearray before the archive": (behind(BYTEARRAY), "before the archive"),
    "bytearray in another list of entries": (listed_twice(BYTEARRAY), "its end does not fit"),
    "bytearray before an archive of nothing": (before_nothing(BYTEARRAY), "archive of nothing"),
    "tensor of any size": (called("torch\nFloatTensor", LARGE + b"\x85"), "calls torch FloatTensor"),
    "array of any size": (
        called("numpy.core.multiarray\n_reconstruct", b"cnumpy\nndarray\n" + LARGE + text(b"O") + b"\x87"), "not empty"
    ),
    "digits of digits": (pickled(doubled(30)), "many copies"),
    "a text many times": (pickled(repeated("_codecs\nencode", LONG, text(b"latin1") + b"\x86")), "many copies"),
    "a tuple many times": (pickled(repeated("torch\nSize", b"(" + b"K\x01" * 2**16 + b"t")), "many copies"),
    "arguments in a list": (called("_codecs\nencode", b"](" + LONG + text(b"hex") + b"e"), "not a tuple"),
    "lists of lists": (endless("versions"), "stored values, but repeats"),
    "two entries of a name": (entries(lambda n, d: [(n, d)] * (1 + n.endswith("data/0"))), "two of its entries"),
    "two entries but for case": (entries(lambda n, d: [(n, d), (n.upper(), d)]), "two of its entries"),
    "byte order": (entries(lambda n, d: [(n, b"big" if n.endswith("byteorder") else d)]), "byte order 'big'"),
    "byte order in another case": (in_another_case("byteorder", b"big"), "byte order 'big'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_checkpoint_is_scanned_before_it_is_loaded(checkpoint, tmp_path, name):
    change, words = WRONG[name]
    path = Path(shutil.copy(checkpoint, tmp_path))
    change(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=words):
        algo_from_checkpoint(load_checkpoint(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_values_may_be_repeated_sixteen_times_and_65_536_beside():
    # 1 + 17 (1 + n) values in all, of which 17 + n are stored.
    check_extent([[0] * 65_790] * 17, "a.pth")
    deep = functools.reduce(lambda inner, _: [inner], range(MAX_DEPTH + 1), 0)
    check_extent(deep, "a.pth")
    with pytest.raises(CheckpointError, match=f"deeper than {MAX_DEPTH} levels"):
        check_extent([deep], "a.pth")
    weight = torch.zeros(3, 4)
    assert stored_numbers({"a": weight, "b": {"c": weight.T, "d": torch.zeros(5)}}) == 17
    with pytest.raises(
        CheckpointError, match="has 65,808 stored values, but repeats them to 1,118,465"
    ):
        check_extent([[0] * 65_791] * 17, "a.pth")


def test_weights_and_files_of_ranks_are_scanned_too(checkpoint, tmp_path):
    archive = Path(shutil.copy(checkpoint, tmp_path / "a.pth"))
    WRONG["bytearray"][0](archive)
    pickles = tmp_path / "b.pth"  # as torch wrote them before 1.6
    pickles.write_bytes(
        b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})) + BYTEARRAY
    )
    cut = tmp_path / "c.pth"
    cut.write_bytes(pickles.read_bytes()[:-1])
    ended_twice = tmp_path / "d.pth"  # the short second end is one for Python only
    ended_twice.write_bytes(archive.read_bytes() + b"PK\5\6\0\0\0\0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in (archive, pickles, cut, ended_twice):
        words = "not a zip file" if path == ended_twice else "builtins bytearray"
        with pytest.raises(ConfigError, match=f"{path.name} cannot be read .*{words}"):
            read_weights(path)
    with pytest.raises(CheckpointError, match="bytearray"):
        read_whole(archive)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_networks_larger_than_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("imitate.algo.base.allocation.MOST_TENSORS", 100)
    monkeypatch.setattr("imitate.algo.base.allocation.free_memory", lambda: 2**30)
    of_size = (
        "a network requires a tensor of {}, but 1.07 GB of memory are free: choose smaller layers"
    )
    for layers, words in (
        ([2**40], of_size.format("13.2 TB")),
        ([10**400], of_size.format("more than 10^15 TB")),
        ([4] * 100, "the networks need more than 100 tensors: choose fewer layers"),
    ):
        with pytest.raises(ConfigError, match=f"^algo: {re.escape(words)}$"):
            tiny_algo(algo={"actor_layer_dims": layers})


@pytest.mark.parametrize(("free", "shape", "words"), [
    (2**10, (1, 10**4), "takes 80.3 kB of memory, of which 1.02 kB are free"), (2**40, (1, 10**6), "claims 8 MB in"),
])  # fmt: skip
def test_arrays_of_zeros_are_unpacked_to_what_there_is_room_for(
    tmp_path, monkeypatch, free, shape, words
):
    monkeypatch.setattr(memory, "ALWAYS_BYTES", 0)
    monkeypatch.setattr(memory, "MAX_RATIO", 200)
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    path = tmp_path / "t.npz"
    np.savez_compressed(path, instructions=np.array(["a" * 80]), embeddings=np.zeros(shape))
    with pytest.raises(ConfigError, match=words):
        Instructions.load(path)


# ---- small files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "words"), [
    ("[" * 5000 + "]" * 5000, "nested deeper than"), ('{"a":' * 150 + "1" + "}" * 150, "nested deeper than"),
    ("9" * 5000, "not JSON that can be read"), ("{", "not JSON"), (b"\xff\xfe", "not UTF-8"),
    ("[1]" + " " * 100, "at most"),
])  # fmt: skip
def test_a_json_file_that_cannot_be_read_is_one_line(tmp_path, text, words):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=words):
        read_json(path, limit=100 if words == "at most" else 2**20)
    if words != "at most":
        with pytest.raises(UserError):
            load_config(path)


@pytest.mark.parametrize(("settings", "index"), [(2**17 + 1, 2**23 + 1)])
def test_json_of_more_values_than_memory_takes_is_refused_before_it_is_read(
    tmp_path, settings, index
):
    """A list of 3 bytes takes 64, and copies of a configuration as much again."""
    path, data, meta = tmp_path / "config.json", tmp_path / "d.hdf5", tmp_path / "s" / "index.json"
    meta.parent.mkdir()
    path.write_text('{"x": [' + "[]," * settings + "[]]}")
    with pytest.raises(ConfigError, match="not JSON that can be read .more than 131072 values"):
        load_config(path)
    with pytest.raises(FileError, match="the configuration: has more than 131072 values"):
        load_config({"x": [0] * settings})
    with h5py.File(data, "w", libver="latest") as file:
        file.create_group("data").attrs["env_args"] = path.read_text()
    with (
        pytest.raises(UserError, match="'env_args' of group 'data' is not a JSON object"),
        DemoFile(data) as demos,
    ):
        demos.env_meta  # noqa: B018
    meta.write_text('{"format": "imitate-shards", "x": [' + "0," * index + "0]}")
    with pytest.raises(UserError, match="not JSON .more than 8388608 values"):
        shards_at(meta.parent)
    path.write_text("[" + "0," * 2**21 + "0]")
    with pytest.raises(FileError, match="more than 2097152 values"):
        read_json(path)
    assert len(json_value(" " * 9 + "[0, 1, 2]", 3)) == len(json_value(b"[0, 1, 2]", 3)) == 3
    for text in ("[0, 1, 2, 3]", b'{"a": {"b": [1, 2]}}'):
        with pytest.raises(ValueError, match="more than 3 values"):
            json_value(text, 3)


def test_texts_of_files_are_read_as_json_at_one_door():
    root = Path(hdf5_format.__file__).parents[2]
    used = {
        path.relative_to(root).as_posix(): path.read_text().count("json.loads(")
        for path in root.rglob("*.py")
    }
    assert {name: count for name, count in used.items() if count} == {
        "cli/options.py": 1, "cli/robot/robots.py": 1, "config/config.py": 1,
        "collect/demonstrate.py": 1, "collect/render.py": 1, "data/download/catalogue.py": 1, "deploy/schema.py": 1,
        "deploy/comparison/trial_file.py": 3, "evaluate/job.py": 1, "interop/robomimic/importing.py": 1,
        "system/plain_files.py": 1, "system/ranks.py": 1, "train/sweep/over_seeds.py": 1, "train/sweep/sweep.py": 1,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["device", "pipe", "sparse"])
@pytest.mark.parametrize("name", ["index.json", "config.json", "metrics.jsonl", "info.json"])
def test_devices_pipes_and_files_without_end_are_not_read(tmp_path, kind, name):
    path = tmp_path / "d" / name
    path.parent.mkdir()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**36)
    with pytest.raises(FileError, match="not a regular file|at most"):
        read_json(path)
    for read in (
        shards_at,
        open_run_folder,
        read_curves_of,
        diagnosis,
        lambda _: load_config(path),
    ):
        with contextlib.suppress(UserError):
            read(path.parent)


def read_curves_of(folder):
    read_curves([folder])


# ---- the server --------------------------------------------------------------------------------------


class Channel:
    """Messages that never end."""

    emptied = False

    def __init__(self, data):
        self.data, self.read = data, 0

    def recv(self, timeout_s):
        self.read += 1
        return memoryview(self.data)


@pytest.mark.parametrize(("size", "most"), [(1, server_module.MAX_TOGETHER), (2**20, 4)])
def test_a_sender_that_never_pauses_fills_no_memory(size, most):
    server = object.__new__(PolicyServer)
    server._max_bytes, server._idle_s, server.budget = 4 * 2**20, 1.0, Budget(2**30)
    channel = Channel(encode({"a": b"x" * size}))
    assert len(server._received(channel, object())) == channel.read == most


@pytest.fixture
def server():
    class Policy:
        schema = None

    with PolicyServer(Policy(), port=0, token="a token of some length") as server:
        yield server


def opened(server, count):
    return [socket.create_connection((server.host, server.port), timeout=60) for _ in range(count)]


def test_connections_before_the_token_are_bounded_and_others_are_still_answered(server):
    before = threading.active_count()
    silent = opened(server, server_module.MAX_WAITING + 40)
    for sock in silent[:40]:
        assert sock.recv(1) == b"", "the oldest ones were ended"
    assert threading.active_count() - before <= server_module.MAX_WAITING + 1
    (good,) = opened(server, 1)
    good.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                 b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")  # fmt: skip
    assert b"200 OK" in good.recv(1000)
    for sock in [*silent, good]:
        sock.close()
    while threading.active_count() > before:
        time.sleep(0.01)


# ---- demonstration files whose arrays are much larger than their compressed bytes ----------------------------------


def test_commands_that_describe_a_dataset_never_read_a_whole_array(tmp_path, monkeypatch):
    path = tmp_path / "zeros.hdf5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        for name, width in {"obs/flat": 3, "actions": 2, "rewards": 1, "dones": 1}.items():
            demo.create_dataset(name, (4000, width), "f4", compression="gzip")
        demo["actions"][1234] = (-0.5, 0.25)
        demo["rewards"][3999] = 1
        file["mask/train"] = np.array([b"demo_0"])
    read, largest = DemoFile.read, [0]

    def measured(*args, **options):
        values = read(*args, **options)
        largest[0] = max(largest[0], values.nbytes)
        return values

    monkeypatch.setattr(DemoFile, "read", measured)
    for module in (hdf5_format, observations):
        monkeypatch.setattr(module, "PIECE_BYTES", 2048)
    printed = call("info", path).output
    assert "1 of 1" in printed and "-0.500" in printed and "+0.250" in printed
    printed = call("config init --no-forecast", path, "--out", tmp_path / "c.json").output
    assert "2 numbers from -0.5 to 0.25" in printed
    assert 0 < largest[0] <= 2048


@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_a_training_on_more_steps_than_memory_is_refused_before_they_are_read(
    tmp_path, monkeypatch, algo
):
    path = tmp_path / "zeros.hdf5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        for name, width in {"obs/flat": 3, "actions": 2, "rewards": 0, "dones": 0}.items():
            shape = (600_000, width) if width else (600_000,)
            demo.create_dataset(name, shape, "f4", compression="gzip")
    config = {
        "algo_name": algo,
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
        "train": {"data": str(path)},
        "experiment": {"rollout": {"enabled": False}},
    }
    (tmp_path / "c.json").write_text(json.dumps(config))
    monkeypatch.setattr(store, "free_memory", lambda: 70_000_000)
    monkeypatch.setattr(store.Store, "_fill", None)
    said = call(
        "train --config", tmp_path / "c.json", "--output-dir", tmp_path / "runs", code=2
    ).output
    assert "600000 steps take 76.8 MB of memory besides their data, and 70 MB are free" in said


@pytest.mark.parametrize(("verb", "option"), [("check-deploy", ()), ("diagnose", ("--dataset",))])
def test_a_comparison_of_more_steps_than_memory_is_refused_before_they_are_read(
    checkpoint, tmp_path, monkeypatch, verb, option
):
    path = tmp_path / "zeros.hdf5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        for name, width in {"obs/a": 3, "actions": 1}.items():
            demo.create_dataset(name, (200_000, width), "f4", compression="gzip")
    read = DemoFile.read

    def little(self, demo, key, start=0, stop=None, *rest):
        assert stop is not None and stop - start < 10, "an array was read whole"
        return read(self, demo, key, start, stop, *rest)

    monkeypatch.setattr(memory, "free_memory", lambda: 70_000_000)
    monkeypatch.setattr(DemoFile, "read", little)
    said = call(verb, checkpoint, *option, path, code=2).output
    assert "comparing 200000 steps takes 70.4 MB of memory, of which 70 MB are free" in said


def test_quantiles_take_the_memory_of_a_column():
    values = np.random.default_rng(0).normal(size=(20_000, 40)).astype(np.float32)
    tracemalloc.start()
    found = quantiles_of(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes / 2
    wanted = np.quantile(values.astype(np.float64), list(found), axis=0)
    np.testing.assert_array_equal(list(found.values()), wanted)
