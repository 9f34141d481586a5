"""Files that lead out of themselves are refused by everything that reads them."""

import ast
import json
import zlib
from pathlib import Path
from struct import pack

import h5py
import numpy as np
import pytest

import imitate
from imitate.data import DatasetFile, DatasetWriter, SequenceDataset
from imitate.data.file import confined
from imitate.data.file.confined import (
    ConfinedFile,
    ConfinedGroup,
    OutsideFileError,
    arrays_below,
    check_below,
    check_path,
    check_storage,
)
from imitate.data.file.extents import Extents
from imitate.errors import DatasetError
from tests.calling import call
from tests.tiny import tiny_tree

SECRET = b"the quick brown fox jumps over it" * 4
KEY = "data/demo_0/obs/object"


def external(place="/data/demo_0/obs/object"):
    """A link into another file that exists; linked files are found beside the one that names them."""
    return h5py.ExternalLink("other.hdf5", place)


def external_link(file):
    file[KEY] = external()


def external_group(file):
    del file["data/demo_0/obs"]
    file["data/demo_0/obs"] = external("/data/demo_0/obs")


def external_demo(file):
    del file["data/demo_0"]
    file["data/demo_0"] = external("/data/demo_0")


def soft_link_to_external(file):
    file["aside"] = external("/")
    file[KEY] = h5py.SoftLink("/aside/data/demo_0/obs/object")


def relative_soft_link(file):
    file["data/demo_0/obs/aside"] = external()
    file[KEY] = h5py.SoftLink("./aside")


def raw_storage(file):
    secret = str(Path(file.filename).with_name("secret"))
    file.create_dataset(KEY, (12, 10), dtype="u1", external=[(secret, 0, len(SECRET))])


def virtual(file):
    layout = h5py.VirtualLayout((12, 10), "f8")
    layout[:] = h5py.VirtualSource("other.hdf5", "data/demo_0/obs/object", (12, 10))
    file.create_virtual_dataset(KEY, layout)


WAYS = [
    external_link, external_group, external_demo, soft_link_to_external, relative_soft_link, raw_storage, virtual
]  # fmt: skip


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.__name__)
def bad(request, tmp_path_factory, make_demo_file):
    """A file, bad.hdf5, one of whose objects is in another file that exists. Nothing may write into its folder."""
    folder = tmp_path_factory.mktemp("leads out")
    make_demo_file(folder / "other.hdf5", seed=1)
    (folder / "secret").write_bytes(SECRET)
    path = make_demo_file(folder / "bad.hdf5", next_obs=False)
    with h5py.File(path, "r+") as file:
        del file[KEY]
        request.param(file)
    return path


def refused(*words, code=2):
    told = call("", *words, code=code).output
    assert "another file" in told or "other files" in told


@pytest.mark.parametrize("key", ["obs/object", "./obs/object", "obs//object"])
def test_no_value_of_another_file_is_read(bad, key):
    with DatasetFile(bad) as file, Extents(file) as extents:
        with pytest.raises(OutsideFileError, match="bad.hdf5"):
            file.read("demo_0", key)
        with pytest.raises(OutsideFileError):
            extents.read("demo_0", key, 0, 4)
        with pytest.raises(OutsideFileError):  # a key that leads out is not left out in silence
            file.keys("demo_0")


LINK = "is a link to another file ('other.hdf5'), which is not followed: copy the data into this"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (external_link, f": '/{KEY}' {LINK}"),
        (external_demo, f": '/data/demo_0' {LINK}"),
        (soft_link_to_external, f": '/aside' {LINK}"),
        (relative_soft_link, f": '/data/demo_0/obs/aside' {LINK}"),
        (raw_storage, f": '/{KEY}' has its values in another file ("),
        (virtual, f": '/{KEY}' is a virtual dataset: its values are in other files, and other files are not read"),
    ],
)  # fmt: skip
def test_what_is_outside_is_named(tmp_path, way, words):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0" if way is external_demo else "data/demo_0/obs/s"] = np.zeros(2)
        way(file)
    with ConfinedFile(path, "r") as file:
        with pytest.raises(OutsideFileError) as error:
            file[KEY]
        assert str(error.value).startswith(f"{path}{words}")
        with pytest.raises(OutsideFileError) as error:
            check_below(file)
        assert str(error.value).startswith(f"{path}{words}")
        if "link" in words:
            with pytest.raises(OutsideFileError):
                assert KEY in file
        check_below("no group")


@pytest.mark.parametrize("mode", ["all", "low_dim", None])
def test_training_refuses(bad, mode):
    with pytest.raises(OutsideFileError):
        SequenceDataset(bad, obs_keys=("object",), hdf5_cache_mode=mode)


def test_train_command_refuses(bad, tmp_path):
    tree = tiny_tree(obs={"object": 10}, train={"output_dir": str(tmp_path / "runs")})
    (tmp_path / "bc.json").write_text(json.dumps(tree))
    refused("train", "--config", tmp_path / "bc.json", "--dataset", bad)


def test_report_says_it(bad, tmp_path):
    page = tmp_path / "page.html"
    result = call("dataset report", bad, "--out", page, code=None)
    said = result.output + (page.read_text() if page.exists() else "")
    assert "another file" in said or "other files" in said
    assert "the quick brown fox" not in said


@pytest.mark.parametrize(
    "words",
    [
        "info bad.hdf5",
        "dataset doctor bad.hdf5",
        "dataset stats bad.hdf5 --keys obs/object",
        "dataset convert bad.hdf5 OUT --from robomimic",
        "dataset convert bad.hdf5 OUT",
        "dataset subset bad.hdf5 --demos demo_0 --out OUT",
        "dataset delete bad.hdf5 --keys obs/robot0_eef_pos --out OUT",
        "dataset split bad.hdf5 --out OUT",
        "dataset merge bad.hdf5 other.hdf5 --out OUT",
        "dataset merge other.hdf5 bad.hdf5 --common-keys --out OUT",
    ],
)
def test_commands_refuse_and_no_copy_is_made(bad, tmp_path, monkeypatch, words):
    monkeypatch.chdir(bad.parent)
    out = tmp_path / "out.hdf5"
    words = [out if word == "OUT" else word for word in words.split()]
    refused(*words, code=3 if "doctor" in words else 2)
    assert not out.exists()


def test_a_link_beside_the_demos_is_not_copied_on(demo_file, tmp_path):
    demo_file("other.hdf5")
    path = demo_file("bad.hdf5")
    with h5py.File(path, "r+") as file:
        file["notes/more"] = external("/data")
    refused("dataset", "subset", path, "--first", "2", "--out", tmp_path / "out.hdf5")


def test_masks_of_another_file_are_refused(demo_file):
    other, path = demo_file("other.hdf5", filter_keys={"train": [0]}), demo_file("bad.hdf5")
    with h5py.File(path, "r+") as file:
        file["mask"] = external("/mask")
    before = other.read_bytes()
    refused("info", path)
    refused("dataset", "split", path, "--in-place")
    assert other.read_bytes() == before


def test_nothing_is_appended_to_another_file(demo_file):
    other = demo_file("other.hdf5")
    before = other.read_bytes()
    path = other.with_name("bad.hdf5")
    with h5py.File(path, "w") as file:
        file["data"] = external("/data")
    with pytest.raises(DatasetError):
        DatasetWriter(path, {}, append=True)
    assert other.read_bytes() == before


_FOREIGN = {
    "d4rl": ("observations", "actions", "rewards", "terminals", "timeouts"),
    "libero": ("data",),
    "aloha": ("action", "observations"),
    "robosuite": ("data",),
    "mimicgen": ("data",),
    "d3rlpy": ("observations", "actions", "rewards", "terminals"),
    "minari": ("episode_0/actions",),
}


@pytest.mark.parametrize("form", _FOREIGN)
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
    refused("dataset", "convert", path, tmp_path / "out.hdf5", "--from", form)


def test_soft_and_hard_links_within_the_file_are_read(demo_file):
    path = demo_file(next_obs=False)
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/soft"] = h5py.SoftLink("object")
        file["data/demo_0/obs/hard"] = file["data/demo_0/obs/object"]
    with DatasetFile(path) as file:
        values = file.read("demo_0", "obs/object")
        np.testing.assert_array_equal(file.read("demo_0", "obs/soft"), values)
        np.testing.assert_array_equal(file.read("demo_0", "obs/hard"), values)


def test_pieces_that_are_larger_than_their_array_are_not_unpacked(demo_file):
    path = demo_file()
    with h5py.File(path, "a") as file:
        del file[KEY]
        sizes = {"chunks": (2**26, 1), "maxshape": (None, 3), "compression": "gzip"}
        file.create_dataset(KEY, (5, 3), "f4", **sizes)
    with DatasetFile(path) as file, pytest.raises(DatasetError, match="in chunks of 268 MB"):
        file.read("demo_0", "obs/object")


def scaled(plist):
    """Kind and factor; HDF5 adds the number of values, their class, their size and more."""
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (2, 0, *[0] * 18))


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        pytest.param([h5py.h5p.PropDCID.set_deflate] * 2, 60, id="twice"),
        pytest.param([h5py.h5p.PropDCID.set_deflate], 10**6, id="more than there is"),
        pytest.param([scaled], 60, id="told another size"),
    ],
)
def test_pieces_that_could_unpack_without_end_are_not_unpacked(demo_file, packed, size):
    path = demo_file()
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((5, 3))
    for add in packed:
        add(plist)
    with h5py.File(path, "a") as file:
        del file[KEY]
        space = h5py.h5s.create_simple((5, 3))
        array = h5py.h5d.create(file.id, KEY.encode(), h5py.h5t.IEEE_F32LE, space, plist)
        array.write_direct_chunk((0, 0), zlib.compress(bytes(size)))
    path.write_bytes(path.read_bytes().replace(pack("<3I", 2, 0, 15), pack("<3I", 2, 0, 2**28)))
    with DatasetFile(path) as file, pytest.raises(DatasetError, match="could unpack without end"):
        file.read("demo_0", "obs/object")


@pytest.mark.parametrize("how", [
    {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}, {"scaleoffset": 9},
])  # fmt: skip
def test_what_hdf5_packs_is_unpacked(demo_file, how):
    path, values = demo_file(), np.random.default_rng(0).normal(size=(5, 3)).astype("f4")
    with h5py.File(path, "a") as file:
        del file[KEY]
        file.create_dataset(KEY, data=values, chunks=(2, 2), **how)
    with DatasetFile(path) as file:
        np.testing.assert_allclose(file.read("demo_0", "obs/object"), values, atol=1e-6)


@pytest.mark.parametrize(
    ("piece", "whole", "refuses"),
    [
        (2**26, 4, False),  # 64 MiB: never too large
        (2**26 + 4, 4, True),
        (2**27, 2**23, False),  # 16 times its array
        (2**27 + 4, 2**23, True),
    ],
)
def test_the_largest_pieces(tmp_path, piece, whole, refuses):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        sizes = {"chunks": (piece // 4,), "maxshape": (None,)}
        array = file.create_dataset("s", (whole // 4,), "f4", **sizes)
        if not refuses:
            check_storage(array.id)
            return
        with pytest.raises(DatasetError) as error:
            check_storage(array.id)
    sizes = {
        4: "in chunks of 67.1 MB, but has only 0.004 kB",
        2**23: "in chunks of 134 MB, but has only 8.39 MB",
    }
    assert f"a.hdf5: '/s' is stored {sizes[whole]}: the file is damaged" in str(error.value)


@pytest.mark.parametrize(
    ("length", "stored", "refuses"),
    [
        (25, 174, False),  # a tenth and 64 bytes more than the 100 bytes of a chunk
        (25, 175, True),
        (26, 348, False),  # two chunks
        (26, 349, True),
    ],
)
def test_the_largest_compressed_pieces(tmp_path, length, stored, refuses):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        array = file.create_dataset("s", (length,), "f4", chunks=(25,), compression="gzip")
        pieces = range(0, length, 25)
        for start in pieces:
            array.id.write_direct_chunk((start,), bytes(stored // len(pieces)))
        if stored % len(pieces):
            array.id.write_direct_chunk((0,), bytes(stored // 2 + 1))
        assert array.id.get_storage_size() == stored
        if not refuses:
            check_storage(array.id)
            return
        with pytest.raises(DatasetError, match="'/s' has a compression that no program writes"):
            check_storage(array.id)


def test_the_deepest_links_and_groups(tmp_path):
    """Sixteen soft links in a row, sixteen groups in each other, ten thousand groups in all."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["l0"] = np.zeros(1)
        for number in range(17):
            file[f"l{number + 1}"] = h5py.SoftLink(f"l{number}")
        check_path(file.id, b"l16")
        with pytest.raises(ValueError, match="soft links form a loop"):
            check_path(file.id, b"l17")
        del file["l17"]
        deep = file.create_group("a" + "/a" * 15)
        deep["s"] = np.zeros(1)
        assert [key for key, _ in arrays_below(file.id)] == ["l0", "/".join(["a"] * 16) + "/s"]
        deep.create_group("a")
        with pytest.raises(ValueError, match="groups are nested without end"):
            list(arrays_below(file.id))
        wide, *inner, empty = map(file.create_group, ("wide", "a1", "a2", "a3", "empty"))
        for holder, held, count in zip(
            [wide, *inner], [*inner, empty], (9, 10, 10, 10), strict=True
        ):
            for number in range(count):  # 1 + 9 (1 + 10 (1 + 10 (1 + 10))) groups
                holder[str(number)] = held
        assert list(arrays_below(wide.id)) == []
        wide["more"] = empty
        with pytest.raises(ValueError, match="groups are nested without end"):
            list(arrays_below(wide.id))


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
        assert file.get("data/nothing") is None and file.get("data/nothing", 3) == 3
        assert file.get("data", getclass=True) is h5py.Group
        assert type(file["data"]) is ConfinedGroup and "data" in file
        assert [key for key, _ in file["data"].items()] == list(file["data"])


REPEATED = {
    "in a row": ({}, {}, h5py.vlen_dtype(np.uint8)),
    "numbers of two bytes": ({}, {}, h5py.vlen_dtype(np.uint16)),
    "texts": ({}, {}, h5py.string_dtype()),
    "after a user block": ({"userblock_size": 512}, {}, h5py.vlen_dtype(np.uint8)),
    "pieces": ({}, {"chunks": (30,)}, h5py.vlen_dtype(np.uint8)),
    "packed pieces": ({}, {"chunks": (30,), "compression": "gzip"}, h5py.vlen_dtype(np.uint8)),
}


def repeat_first(path, key):
    """Let all values of variable length refer to the first one, which has 9,000 items."""
    with h5py.File(path, "r+") as file:
        array = file[key]
        if array.compression:
            first = zlib.decompress(array.id.read_direct_chunk((0,))[1])[:16]
            array.id.write_direct_chunk((0,), zlib.compress(first * len(array)))
            return
        count, at = (
            len(array),
            array.id.get_chunk_info(0).byte_offset if array.chunks else array.id.get_offset(),
        )
    content = bytearray(path.read_bytes())
    at += 0 if content[at : at + 4] == pack("<I", 9000) else 512
    content[at : at + 16 * count] = content[at : at + 16] * count
    path.write_bytes(content)


@pytest.mark.parametrize("how", REPEATED)
def test_values_that_are_stored_once_and_repeated_are_not_read(tmp_path, monkeypatch, how):
    of_file, of_array, dtype = REPEATED[how]
    path = tmp_path / "a.hdf5"
    monkeypatch.setattr(confined, "ALWAYS_BYTES", 0)
    with h5py.File(path, "w", **of_file) as file:
        array = file.create_dataset("x", (30,), dtype, **of_array)
        array[0] = "a" * 9000 if how == "texts" else np.zeros(9000, h5py.check_vlen_dtype(dtype))
    with ConfinedFile(path) as file:
        assert len(file["x"][0]) == 9000
    repeat_first(path, "x")
    with h5py.File(path) as file:
        assert {len(value) for value in file["x"][:]} == {9000}
    total = "540 kB" if how == "numbers of two bytes" else "270 kB"
    with (
        ConfinedFile(path) as file,
        pytest.raises(DatasetError, match=f"'/x' has {total} in a file of"),
    ):
        file["x"]


@pytest.mark.parametrize(
    ("name", "inside"), [("data/demo_0", "data"), ("data/demo_0/obs/s", "data/demo_0/obs")]
)
def test_an_object_of_more_than_16_names_is_not_read_again_and_again(tmp_path, name, inside):
    """Sixty thousand names take 4 MB and are as many demos."""
    path, words = (
        tmp_path / "a.hdf5",
        "a.hdf5: .* has 17 names or more, at most 16 are read: copy it instead",
    )
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/s"] = file["data/demo_0/actions"] = np.zeros((2, 1))
        for number in range(15):
            file[f"{inside}/x{number}"] = file[name]
    with ConfinedFile(path, "r") as file:
        assert file[inside]["x3"] == file[name]
        list(arrays_below(file["data"].id))
    with h5py.File(path, "r+") as file:
        file[f"{inside}/x15"] = file[name]
    with ConfinedFile(path, "r") as file:
        for read in (lambda: file[inside]["x3"], lambda: list(arrays_below(file["data"].id))):
            with pytest.raises(DatasetError, match=words):
                read()
    with h5py.File(path, "r+") as file:
        for number in range(16):
            del file[f"{inside}/x{number}"]
        for number in range(17):
            file[f"{inside}/x{number}"] = h5py.SoftLink(f"/{name}")
    with ConfinedFile(path, "r") as file:
        for number in (*range(16), *range(16)):
            assert file[inside][f"x{number}"] == file[name]
        with pytest.raises(DatasetError, match=words):
            file[inside]["x16"]


def repeated(path, of, kind, count=24, *, size):
    """Write attributes, or an array, with texts that could all be one text of the file."""
    with h5py.File(path, "w") as file:
        text, short = "A" * size, np.zeros(1, kind)
        file["other"] = np.zeros(5 * size, "u1")
        if kind == h5py.string_dtype():
            texts = np.array([text] * count, object)
        else:
            texts = np.array([(text,) * len(short.dtype)] * (count // len(short.dtype)), kind)
        group = file.create_group("data")
        if of == "array":
            group["a"] = texts
        elif of == "attributes":
            for number, value in enumerate(texts):
                group.attrs.create(f"a{number}", value, dtype=kind)
        else:
            (group if of == "attribute" else group.create_dataset("a", (1,))).attrs.create(
                "a", texts, dtype=kind
            )


RECORD = np.dtype([("a", h5py.string_dtype()), ("b", h5py.string_dtype())])


@pytest.mark.parametrize("kind", [h5py.string_dtype(), RECORD], ids=["texts", "records"])
@pytest.mark.parametrize("of", ["attribute", "attributes", "attribute of an array", "array"])
def test_texts_that_a_file_may_repeat_are_bounded(tmp_path, monkeypatch, of, kind):
    if (of, kind) == ("array", h5py.string_dtype()):
        return  # their lengths are added up
    path = tmp_path / "a.hdf5"
    repeated(path, of, kind, size=2**10)
    read = {
        "attribute": lambda f: dict(f["data"].attrs),
        "attributes": lambda f: dict(f["data"].attrs),
    }
    read = read.get(of, lambda f: f["data"]["a"])
    monkeypatch.setattr(confined, "MOST_TEXT", 24 * 2**15)
    with ConfinedFile(path, "r") as file:
        read(file)
    repeated(path, of, kind, size=2**17)
    words = "a.hdf5: .* has 24 texts in (attributes|its values), which could take 3.[0-9]+ MB because many may refer"
    with ConfinedFile(path, "r") as file, pytest.raises(DatasetError, match=words):
        read(file)
    repeated(path, of, kind, 16, size=2**17)
    with ConfinedFile(path, "r") as file:
        read(file)
