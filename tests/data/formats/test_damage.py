"""Damaged and foreign files, lengths that nobody may believe, and disks that are full."""

import bz2
import json
import resource
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests import fork_server
from tests.data.formats import samples

ROOT = Path(__file__).parents[3]


@pytest.mark.slow("every reader meets every file")
@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (("robomimic", "d4rl", "diffusion-policy", "lerobot, ours", "doctor"), 4),
        pytest.param((*samples.MAKERS, "SequenceDataset", "doctor"), 20, marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_a_few_damaged_and_foreign_files_against_readers(names, refused):
    """The whole of it, 200 of each, is a command: see tools/fuzz_readers.py."""
    words = ("--cases", "1", "--foreign", "1", "--json", *names)
    code, printed = fork_server.run_module("tools.fuzz_readers", *words)
    found = json.loads(printed)
    assert (found["failures"], code) == ([], 0)
    assert [row["sample"] for row in found["rows"]] == list(names)
    assert all(row["cases"] == 4 for row in found["rows"])
    assert sum(row["refused"] for row in found["rows"]) > refused


# ---- lengths -------------------------------------------------------------------------------------


def hdf5(make, key, shape, dtype=np.float32):
    """A sample in which an array claims another shape, of which nothing was written."""

    def made(path):
        make(path)
        file = next(path.rglob("*.hdf5")) if path.is_dir() else path
        with h5py.File(file, "a") as opened:
            del opened[key]
            opened.create_dataset(key, shape=shape, dtype=dtype, chunks=True)
        return path

    return made


def edited(make, places, change):
    """A sample whose JSON files at these places say something else."""

    def made(path):
        make(path)
        for file in path.glob(places):
            file.write_text(json.dumps(change(json.loads(file.read_text()))))
        return path

    return made


def npz(path):
    """The header of one array claims 4 TB."""
    samples.recorded("cartpole.npz")(path)
    data, header = BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(data, header)
    content = {name: np.load(path)[name] for name in ("acts", "terminal", "indices")}
    np.savez(path, **content)
    with ZipFile(path, "a") as archive:
        archive.writestr("obs.npy", data.getvalue() + bytes(64))
    return path


def lerobot_texts(place):
    """A column of one text of 16 MB, which the file has once and 200 rows repeat."""

    def make(path):
        samples.converted("lerobot")(path)
        file = path / place
        table = pq.read_table(file)
        table = table.take(pa.array([0] * 200))
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 200), ["x" * 2**24])
        pq.write_table(table.append_column("z", column), file, store_schema=False)
        return path

    return make


def lerobot_png(path):
    """One frame's header claims 60,000 x 60,000 pixels."""
    samples.converted("lerobot")(path)
    file = path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    at = table.column_names.index("observation.images.agentview")
    cells = table.column(at).to_pylist()
    png = bytearray(cells[0]["bytes"])
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(bytes(png[12:29])).to_bytes(4, "big")
    cells[0]["bytes"] = bytes(png)
    column = pa.array(cells, type=table.schema.field(at).type)
    pq.write_table(table.set_column(at, table.schema.field(at), column), file)
    return path


def claiming(**values):
    return lambda tree: {**tree, **values}


def of_size(height, width):
    """Another camera's videos: not of the size that info.json says."""

    def change(info):
        info["features"]["observation.images.agentview"]["shape"] = [height, width, 3]
        return info

    return change


LENGTH, INFO = samples.LENGTH, "meta/info.json"
LEROBOT, VIDEOS = (
    samples.converted("lerobot"),
    samples.converted("lerobot", options=Options(video="h264")),
)
OLD = {"codebase_version": "v2.1", "data_path": "data/{episode_chunk}/{episode_index}.parquet"}
CHOICES = json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 2**40})


def minari_rewards(path):
    samples.converted("minari")(path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0"].create_dataset("rewards", (2**38,), np.float32, chunks=True)
    return path


def zarr_chunk(codec, chunk, more=None):
    """A chunk that unpacks to more than 100 MB, of an array of a few bytes."""

    def made(path):
        samples.diffusion_policy(path)
        file = path / "data/action/.zarray"
        tree = {**json.loads(file.read_text()), "compressor": {"id": codec}, "filters": more}
        file.write_text(json.dumps(tree))
        (path / "data/action/0.0").write_bytes(chunk)
        return path

    return made


def zarr_zip(path):
    """Attributes of the root that are packed well."""
    samples.diffusion_policy(path.with_suffix(""))
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr(".zattrs", bytes(11 * 10**7))
        for file in path.with_suffix("").rglob(".z*"):
            if file.is_file() and file.parent != path.with_suffix(""):
                archive.write(file, file.relative_to(path.with_suffix("")))
    return path


ZEROS = zlib.compress(bytes(11 * 10**7), 1)
RUNS = b"".join(  # as zstd stores repeated bytes
    [
        b"\x28\xb5\x2f\xfd\xe0",
        (1600 << 17).to_bytes(8, "little"),
        b"\x02\x00\x10\0" * 1599,
        b"\x03\x00\x10\0",
    ]
)


BOMBS = {
    "robomimic": ("d.hdf5", hdf5(samples.robomimic, "data/demo_1/obs/object", (LENGTH, 2**36))),
    "mimicgen": ("d.hdf5", hdf5(samples.mimicgen, "data/demo_1/actions", (2**36, 7))),
    "libero": ("goal", hdf5(samples.libero, "data/demo_0/obs/joint_states", (5, 2**36))),
    "aloha": ("task", hdf5(samples.aloha, "observations/images/cam_high", (4, 2**38), np.uint8)),
    "d4rl": ("d.hdf5", hdf5(samples.recorded("walker2d.hdf5"), "rewards", (2**38,))),
    "d3rlpy": ("d.h5", hdf5(samples.recorded("d3rlpy_vectors.h5"), "actions_0", (2**38, 2))),
    "imitation": ("d.npz", npz),
    "diffusion-policy": (
        "d.zarr", edited(samples.diffusion_policy, "meta/episode_ends/.zarray", claiming(shape=[2**40]))
    ),
    "diffusion-policy, chunk": (
        "d.zarr", edited(samples.diffusion_policy, "data/action/.zarray", claiming(chunks=[2**38, 2]))
    ),
    "diffusion-policy, rows": (  # none of which is written, in as many episodes
        "d.zarr",
        edited(samples.diffusion_policy, "**/.zarray", lambda a: {**a, "shape": [2**40, *a["shape"][1:]]}),
    ),
    "diffusion-policy, zlib": ("d.zarr", zarr_chunk("zlib", ZEROS)),
    "diffusion-policy, twice": ("d.zarr", zarr_chunk("zlib", zlib.compress(ZEROS), [{"id": "zlib"}])),
    "diffusion-policy, bz2": ("d.zarr", zarr_chunk("bz2", bz2.compress(bytes(10**6)) * 110)),
    "diffusion-policy, zstd": ("d.zarr", zarr_chunk("zstd", RUNS)),
    "diffusion-policy, zip": ("d.zarr.zip", zarr_zip),
    "lerobot": ("lift", edited(LEROBOT, INFO, claiming(total_episodes=10**12))),
    "lerobot, texts": ("lift", lerobot_texts("data/chunk-000/file-000.parquet")),
    "lerobot, episodes": ("lift", lerobot_texts("meta/episodes/chunk-000/file-000.parquet")),
    "lerobot, tasks": ("lift", lerobot_texts("meta/tasks.parquet")),
    "lerobot 2.1": ("lift", edited(LEROBOT, INFO, claiming(total_episodes=10**12, **OLD))),
    "lerobot, png": ("lift", lerobot_png),
    "lerobot, video": ("lift", edited(VIDEOS, INFO, of_size(30_000, 30_000))),
    "minari": ("lift-v0", edited(samples.converted("minari"), "data/metadata.json", claiming(action_space=CHOICES))),
    "minari, rewards": ("lift-v0", minari_rewards),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_length_that_cannot_be_is_refused_before_memory_is_taken(tmp_path, name):
    file, make = BOMBS[name]
    path = make(tmp_path / file)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError) as error:
            form = name.partition(",")[0].split()[0]
            convert(path, tmp_path / "out" / "o.hdf5", from_format=form)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1
    assert str(path) in str(error.value)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(("number", "size"), [(0, 0), (3, 2**64 - 16)])
def test_a_text_that_hdf5_would_read_for_ever_is_refused(tmp_path, number, size):
    """The third object of the heap of texts takes no room, so that the library would never get past it."""
    path = samples.libero(tmp_path / "goal") / "open_it_demo.hdf5"
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL") + 16
    for _ in range(2):
        at += 16 + -(-int.from_bytes(content[at + 8 : at + 16], "little") // 8) * 8
    content[at : at + 2] = number.to_bytes(2, "little")
    content[at + 8 : at + 16] = size.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="open_it_demo.hdf5: the texts that begin at byte"):
        convert(path, tmp_path / "o.hdf5", from_format="libero")


# ---- a full disk ---------------------------------------------------------------------------------


@contextmanager
def files_no_larger_than(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True  # Python would keep a module's file that is cut short
    try:
        yield
    finally:
        sys.dont_write_bytecode = False
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 3_000, 20_000])
@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("robomimic", "o.hdf5", Options()),
        ("diffusion-policy", "o.zarr", Options()),
        ("minari", "o-v0", Options()),
        ("lerobot", "o", Options()),
        ("lerobot", "o", Options(video="h264")),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, name, target, options, size):
    source = samples.robomimic(tmp_path / "d.hdf5")
    out = tmp_path / "out"
    with files_no_larger_than(size), pytest.raises(DatasetError) as error:
        convert(source, out / target, to_format=name, options=options)
    assert len(str(error.value).splitlines()) == 1
    assert str(out / target) in str(error.value)
    assert not list(out.iterdir())
    convert(source, out / target, to_format=name, options=options)  # and the way is free again


@pytest.mark.slow("the end of an interpreter is what is tested")
def test_the_exit_code_after_a_full_disk_is_honest(tmp_path):
    """A file that HDF5 still has open when the interpreter ends would crash it."""
    source = samples.robomimic(tmp_path / "d.hdf5")
    script = (
        "import resource, sys; from imitate.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY)); main()"
    )
    verb = ["dataset", "convert", str(source), str(tmp_path / "o"), "--to", "lerobot"]
    # -B: Python would keep files of modules that are cut short by the limit
    command = [sys.executable, "-B", "-c", script, *verb, "--video", "h264"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "make room" in done.stderr
