"""What lies in RAM: as wanted, or with 'auto' as much as fits."""

from pathlib import Path

import numpy as np
import pytest

from imitate.data.batches.placement import place
from imitate.data.file.fields import Field
from imitate.errors import DatasetError

# 1,000 steps of 10 columns: 40 kB; images of 30 kB and 12 kB a step: 30 MB and 12 MB.
FIELDS = {
    "obs/x": Field("obs/x", (6,), slice(0, 6), np.dtype(np.float32)),
    "actions": Field("actions", (4,), slice(6, 10), np.dtype(np.float32)),
    "obs/front": Field("obs/front", (100, 100, 3), None, np.dtype(np.uint8)),
    "obs/wrist": Field("obs/wrist", (100, 40, 3), None, np.dtype(np.uint8)),
}
PATH = Path("a.hdf5")
BOTH = {"obs/front", "obs/wrist"}


@pytest.mark.parametrize(
    ("mode", "free", "packed", "images", "words"),
    [
        ("all", 43_000_000, True, BOTH, "images: 42 MB in RAM (of 43 MB free)"),
        ("low_dim", 43_000_000, True, set(), "images stay in the file: 42 MB, 43 MB free"),
        (None, 1_000, False, set(), "images stay in the file: 42 MB, 1 kB free"),
        ("auto", 60_000_000, True, BOTH, "images: 42 MB in RAM (of 60 MB free)"),
        # Of the free memory four fifths are taken at most: 40 MB of 50.
        (
            "auto",
            50_000_000,
            True,
            {"obs/front"},
            "images: front in RAM (30 MB of 50 MB free), the others stay in the file (12 MB)",
        ),
        (
            "auto",
            20_000_000,
            True,
            {"obs/wrist"},
            "images: wrist in RAM (12 MB of 20 MB free), the others stay in the file (30 MB)",
        ),
        ("auto", 60_000, True, set(), "images stay in the file: 42 MB, 60 kB free"),
        ("auto", 49_000, False, set(), "images stay in the file: 42 MB, 49 kB free"),
    ],
)
def test_placement(mode, free, packed, images, words):
    placement = place(FIELDS, 1000, mode, free, PATH)
    assert placement.packed_in_ram is packed
    assert placement.apart_in_ram == images
    assert placement.words == words


def test_without_images_there_is_nothing_to_say():
    fields = {key: field for key, field in FIELDS.items() if field.columns}
    assert place(fields, 1000, "auto", 10**9, PATH).words == ""


@pytest.mark.parametrize(
    ("mode", "free", "words"),
    [
        (
            "all",
            41_000_000,
            "a.hdf5: train.hdf5_cache_mode is 'all', but that takes 42 MB of RAM and 41 MB are free: set it to 'auto' "
            "or 'low_dim', so that what does not fit stays in the file",
        ),
        (
            "low_dim",
            39_000,
            "a.hdf5: train.hdf5_cache_mode is 'low_dim', but that takes 40 kB of RAM and 39 kB are free: set it to "
            "'auto' or null, so that what does not fit stays in the file",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_read(mode, free, words):
    with pytest.raises(DatasetError) as error:
        place(FIELDS, 1000, mode, free, PATH)
    assert str(error.value) == words
