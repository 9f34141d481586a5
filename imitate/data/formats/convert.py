"""Conversion from one dataset format to another, one episode at a time."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

import numpy as np

from imitate.config.from_data import UNBOUNDED_ACTIONS
from imitate.data.file.faults import are_beyond
from imitate.data.file.hdf5_format import rate_of, wrong_env_args
from imitate.data.file.step_times import CLOCK, TimeArray
from imitate.data.formats import registry
from imitate.data.formats.base import (
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    Replay,
    reading,
    writing,
)
from imitate.errors import DatasetError
from imitate.system.missing import no_such
from imitate.system.plain_files import check_depth, give_name


def convert(
    source: str | Path,
    target: str | Path,
    *,
    from_format: str | None = None,
    to_format: str | None = None,
    options: Options | None = None,
    overwrite: bool = False,
    replay: Replay | None = None,
    on_demo: Callable[[str, int | None], None] | None = None,
) -> ConversionReport:
    """Convert a dataset.

    The target is written atomically; a failed conversion leaves nothing.

    Args:
        source: file or folder to read, which is never changed.
        target: file or folder to write.
        from_format: name of the source's format; None to detect it.
        to_format: name of the target's format; None to choose it by the ending.
        options: facts that the source does not contain, and options of writing.
        overwrite: true to replace an existing target when the conversion is complete.
        replay: function that makes observations from simulator states, for formats that contain only states
            (:func:`imitate.collect.replay.replayed`).
        on_demo: called after each demo with its name and the number of all demos (None if unknown).

    Raises:
        DatasetError: the source, the target or an option is not valid.
    """
    given = options or Options()
    path, final = Path(source).expanduser(), Path(target).expanduser()
    if final.exists() and path.exists() and final.samefile(path):
        raise DatasetError(f"{final}: is the source itself: choose another name")
    reader = registry.detect(path) if from_format is None else registry.find(from_format)
    writer = registry.target_format(final) if to_format is None else registry.find(to_format)
    _check(path, final, reader, writer, given, overwrite)
    report = ConversionReport(str(path), reader.name, str(final), writer.name)
    with _appearing(final) as unfinished, _opened(reader, path, given, report) as opened:
        if reader.needs_replay:
            opened.demos = _with_observations(copy(opened), replay, path, given, report)
        with writing(final, unfinished):
            _copy(opened, writer, unfinished, given, report, on_demo)
        if report.demos == 0:
            raise DatasetError(f"{path}: holds no demonstration: there is nothing to convert")
    return report


def _check(
    path: Path, final: Path, reader: Format, writer: Format, options: Options, overwrite: bool
) -> None:
    if not path.exists():
        raise DatasetError(no_such(path, "file or folder", "correct the path"))
    if writer.write is None:
        raise DatasetError(
            f"{final}: format '{writer.name}' is only read, not written: choose another with --to"
        )
    if final.exists() and not overwrite:
        raise DatasetError(
            f"{final}: exists already: choose another name, or replace it with --overwrite"
        )
    known = reader.options | writer.write_options
    for name in options.given():
        if name not in known:
            words = ", ".join(f"--{_flag(option)}" for option in sorted(known)) or "none"
            raise DatasetError(
                f"{path}: a conversion from '{reader.name}' to '{writer.name}' does not use "
                f"--{_flag(name)}: leave it out (accepted: {words})"
            )


def _flag(option: str) -> str:
    return option.replace("_", "-")


def _with_observations(
    source: OpenedDataset,
    replay: Replay | None,
    path: Path,
    options: Options,
    report: ConversionReport,
) -> Iterator[NamedDemo]:
    if replay is None:
        raise DatasetError(
            f"{path}: holds states and no observations: pass replay=imitate.collect.replay.replayed, "
            "or use imitate dataset convert"
        )
    return replay(source, options, report)


def _copy(
    source: OpenedDataset,
    writer: Format,
    unfinished: Path,
    options: Options,
    report: ConversionReport,
    on_demo: Callable[[str, int | None], None] | None,
) -> None:
    assert writer.write is not None  # checked above
    path = Path(report.source)
    demos = iter(source.demos)
    first = _next(demos, path)
    if first is None:
        return
    rate_hz = rate_of(source.control_freq, source.env_meta)
    clocks: dict[str, TimeArray] = {}
    with writer.write(unfinished, source, options, report) as append:
        demo: NamedDemo | None = first
        while demo is not None:
            append(demo)
            report.demos += 1
            _look_at_times(demo, clocks, rate_hz)
            actions = np.asarray(demo.episode.actions)
            report.steps += len(actions)
            if are_beyond(actions).any():
                report.note(UNBOUNDED_ACTIONS)
            if on_demo is not None:
                on_demo(demo.name, source.count)
            demo = _next(demos, path)
    doubts = {key: clock.doubt() for key, clock in clocks.items()}
    report.doubts.update({key: doubt for key, doubt in doubts.items() if doubt is not None})


def _look_at_times(demo: NamedDemo, clocks: dict[str, TimeArray], rate_hz: float | None) -> None:
    arrays = {f"obs/{key}": values for key, values in demo.episode.obs.items()}
    for key, values in {**arrays, **demo.episode.steps}.items():
        if CLOCK.search(key):
            clocks.setdefault(key, TimeArray(rate_hz)).see(np.asarray(values), f"'{demo.name}'")


def _next(demos: Iterator[NamedDemo], path: Path) -> NamedDemo | None:
    with reading(path):
        return next(demos, None)


@contextmanager
def _opened(
    reader: Format, path: Path, options: Options, report: ConversionReport
) -> Iterator[OpenedDataset]:
    context = reader.read(path, options, report)
    with reading(path):
        source = context.__enter__()
    try:
        check_depth(source.env_meta, f"{path}: its environment")
        for key, words in wrong_env_args(source.env_meta):
            raise DatasetError(f"{path}: '{key}' of its environment {words}")
        yield source
    finally:
        with reading(path):
            context.__exit__(None, None, None)


@contextmanager
def _appearing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; the result gets the final name at the end, or is removed after an error."""
    unfinished = final.with_name(f"{final.stem}.converting{final.suffix}")
    partial = unfinished.with_name(f"{unfinished.name}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove(unfinished)  # remove what a killed process has left
        _remove(partial)
    except OSError as error:
        raise DatasetError(
            f"{final}: cannot be written ({error.strerror}): choose another folder"
        ) from error
    try:
        yield unfinished
        try:
            _replace(unfinished, final)
        except OSError as error:
            raise DatasetError(
                f"{error.filename or final}: exists already, so {final} cannot be written "
                f"({error.strerror}): remove it, or choose another name"
            ) from error
    finally:
        _remove(unfinished)
        _remove(partial)


def _replace(unfinished: Path, final: Path) -> None:
    if final.is_dir():
        # A folder cannot atomically replace another folder.
        old = final.with_name(f"{final.name}.replaced")
        _remove(old)
        give_name(final, old)
        give_name(unfinished, final)
        _remove(old)
        return
    give_name(unfinished, final)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _remove_folder(path: Path, attempts: int = 20) -> None:
    """Remove a folder with several attempts, as zarr's threads may still remove temporary files after a failure."""
    for _ in range(attempts):
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
        if not path.exists():
            return
