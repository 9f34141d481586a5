"""MimicGen's files: robomimic's layout without rewards, dones, next_obs and masks.

The generator keeps only successful demonstrations, so the last step is terminal with reward 1; in a file of failures
(``demo_failed.hdf5``) it is a timeout with reward 0. Arrays and attributes of ``datagen_info`` are kept. The
environment may be registered only by MimicGen's own package, but reading needs no environment.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from imitate.data.file.episode import Episode
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import ConversionReport, Format, OpenedDataset, Options
from imitate.data.formats.robomimic import first_demo, open_source

_MARKS = ("datagen_info", "src_demo_inds", "src_demo_labels")


def _recognises(path: Path) -> bool:
    with hdf5_tree.peeked(path) as file:
        demo = first_demo(file)
        return demo is not None and any(mark in demo for mark in _MARKS)


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    failed = "failed" in path.stem
    with hdf5_tree.opened(path) as file:
        source = open_source(file, path, report, partial(_completed, failed=failed, report=report))
        if not source.masks:
            report.note("there are no filter keys: make train and valid with imitate dataset split")
        yield source


def _completed(
    group: h5py.Group, episode: Episode, *, failed: bool, report: ConversionReport
) -> Episode:
    """Add rewards, ends and attributes that the format does not contain."""
    length = len(np.asarray(episode.actions))
    last = np.arange(length) == length - 1
    attrs = {"success": not failed, **episode.attrs}
    info = group.get("datagen_info")
    if isinstance(info, h5py.Group):
        for key, value in hdf5_tree.attributes(info).items():
            attrs[f"datagen_info.{key}"] = value
            report.renamed[f"attribute datagen_info/{key}"] = f"attribute datagen_info.{key}"
    if "dones" not in group and "terminals" not in group:
        word = (
            "timeout: a file of failures" if failed else "terminal: only successes are in the file"
        )
        report.synthesised["terminals"] = report.synthesised["timeouts"] = (
            f"the last step is a {word}"
        )
        episode = replace(episode, terminals=last & (not failed), timeouts=last & failed)
    if "rewards" not in group:
        report.synthesised["rewards"] = "0" if failed else "1 at the last step, else 0"
        episode = replace(episode, rewards=(last & (not failed)).astype(np.float32))
    return replace(episode, attrs=attrs)


FORMAT = Format(
    name="mimicgen",
    summary="MimicGen's generated demonstrations (HDF5)",
    recognises=_recognises,
    read=_read,
)
