"""Checks that several files fit together as one dataset, and that training and validation demos differ."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from imitate.data.batches.store import DataSource
from imitate.data.dataset_file import DatasetFile, no_demos
from imitate.data.file.fields import SCALARS
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.system.text import counted

_log = logging.getLogger(__name__)


def check_agreement(sources: Sequence[DataSource], keys: Sequence[str], files: DataFiles) -> None:
    """Refuse files whose first demos have different arrays; warn of different control rates.

    Args:
        sources: files to train on together.
        keys: arrays of a demo that are read.
        files: open files of the sources.

    Raises:
        DatasetError: one line with both files, each key that differs, both shapes, and the remedy.
    """
    first = files.open(sources[0].path)
    first_demo = _first_demo(first, sources[0])
    wanted, rate = _layout(first, first_demo, keys), first.control_freq
    for source in sources[1:]:
        file = files.open(source.path)
        demo = _first_demo(file, source)
        found, own_rate = _layout(file, demo, keys), file.control_freq
        differences = list(_differences(found, wanted))
        if differences:
            raise DatasetError(
                f"{source.path} (demo '{demo}') does not fit {sources[0].path} (demo '{first_demo}'): "
                f"{'; '.join(differences)}: list under observation and train only keys that all files have alike, "
                "write the files alike (imitate dataset rename-key; images in one size), or leave one out of train.data"
            )
        if rate and own_rate and rate != own_rate:
            _log.warning(
                "%s was recorded at %g Hz, but %s at %g Hz: a policy would learn both rates",
                *(source.path, own_rate, sources[0].path, rate),
            )


def _first_demo(file: DatasetFile, source: DataSource) -> str:
    demos = file.demos(source.filter_key)
    if not demos:
        raise no_demos(file, source.filter_key)
    return demos[0]


def _layout(
    file: DatasetFile, demo: str, keys: Sequence[str]
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the shape of a step and whether it is uint8, for each key that the demo has."""
    return {
        key: (file.shape(demo, key)[1:], file.dtype(demo, key) == np.uint8)
        for key in dict.fromkeys(keys)
        if key not in SCALARS and file.has(demo, key)
    }


def _differences(
    found: Mapping[str, tuple[tuple[int, ...], bool]],
    wanted: Mapping[str, tuple[tuple[int, ...], bool]],
) -> Iterator[str]:
    for key in dict.fromkeys([*wanted, *found]):
        here, there = found.get(key), wanted.get(key)
        if here is None and there is not None:
            yield f"'{key}' is missing, but has shape {there[0]} in the other file"
        elif there is None and here is not None:
            yield f"'{key}' has shape {here[0]}, but is missing in the other file"
        elif here is not None and there is not None and _step(here[0]) != _step(there[0]):
            yield f"a step of '{key}' has shape {here[0]}, but {there[0]} in the other file"
        elif here is not None and there is not None and here[1] != there[1]:
            yield f"'{key}' is {_kind(here[1])}, but {_kind(there[1])} in the other file"


def _step(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)  # a scalar per step may be stored as (T,) or (T, 1)


def _kind(is_uint8: bool) -> str:
    return "uint8" if is_uint8 else "not uint8"


def check_apart(train: Sequence[DataSource], valid: Sequence[DataSource], files: DataFiles) -> None:
    """Refuse validation demos that are also training demos, even if a file is listed several times.

    Raises:
        DatasetError: a demo is in both sets, or a file lacks the mask of its validation demos.
    """
    for source in valid:
        file = files.open(source.path)
        if source.filter_key not in file.filter_keys():
            raise DatasetError(
                f"{source.path}: there is no filter key '{source.filter_key}' for the validation demos: write "
                f"train and valid with: imitate dataset split {source.path} --in-place"
            )
        held_out = file.demos(source.filter_key)
        for part in (part for part in train if part.path == source.path):
            trained = set(part.chosen(file))
            shared = [demo for demo in held_out if demo in trained]
            if shared:
                raise DatasetError(_shared_words(source, part, shared))


def _shared_words(valid: DataSource, train: DataSource, shared: Sequence[str]) -> str:
    chosen = (
        f"filter key '{train.filter_key}'" if train.filter_key else "no filter key, so all demos"
    )
    return (
        f"{valid.path}: {len(shared)} validation demos of filter key '{valid.filter_key}', such as '{shared[0]}', are "
        f"training demos too ({chosen}): set train.hdf5_filter_key, or filter_key of this file in train.data, to a "
        "mask without them"
    )


def tell_of_copies(
    train: Sequence[DataSource], valid: Sequence[DataSource], files: DataFiles
) -> None:
    """Warn of equal demos under different names, in the training data or in the training and the validation data."""
    first: dict[bytes, str] = {}
    twice = []
    for digest, demo in _digests(train, files):
        if digest in first:
            twice.append((demo, first[digest]))
        first.setdefault(digest, demo)
    leaks = [(demo, first[digest]) for digest, demo in _digests(valid, files) if digest in first]
    for words, pairs in (("trained on twice", twice), ("both trained and validated on", leaks)):
        if pairs:
            (copy, original), count = pairs[0], counted(len(pairs), "demo")
            _log.warning("%s %s: %s has the actions of %s", count, words, copy, original)


def _digests(sources: Sequence[DataSource], files: DataFiles) -> Iterator[tuple[bytes, str]]:
    """Yield a digest of the actions of each demo, and a name of the demo for messages."""
    for source in sources:
        file = files.open(source.path)
        for demo in source.chosen(file):
            form = f"{file.shape(demo, 'actions')} {file.dtype(demo, 'actions')}"
            digest = hashlib.blake2b(form.encode())
            for _, actions in file.pieces(demo, "actions"):
                digest.update(np.ascontiguousarray(actions).data)
            yield digest.digest(), f"demo '{demo}' of {source.path}"
