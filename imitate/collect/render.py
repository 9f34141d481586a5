"""Render recorded simulator states into a demonstration file with camera images.

Each demo is saved as soon as it is rendered, so that an interrupted rendering can be resumed.
"""

import functools
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
from typing_extensions import Self

from imitate.collect.recorded import Artist, Drawing, Drawn, RecordedDemo, differences
from imitate.crew import Crew, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import (
    FileChanges,
    copy_attrs,
    copy_demo,
    copying,
    read_masks,
    write_masks,
)
from imitate.data.edit.selection import Selection, select
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.image_codec import ImageStorage, write_images
from imitate.data.file.journal import JournaledFile, is_being_written, partial_of, roll_back
from imitate.envs.cameras import Camera, camera_kwargs
from imitate.envs.migration import installed_robosuite, tell_mismatch
from imitate.errors import DatasetError, UserError
from imitate.system.plain_files import give_name, json_value
from imitate.system.processes import STEP_TIMEOUT_S

SETTINGS = "rendered"
"""Attribute of ``data``: settings of the rendering, as JSON."""


@dataclass(frozen=True)
class RenderedLayout:
    """Settings of the file that a rendering writes.

    Attributes:
        settings: all settings that a demo's content depends on, as JSON. A file is resumed only with the same settings.
        env_meta: ``env_args`` of the new file.
        drop: arrays and groups of the source that are left out.
        storage: compression of images, such as 'raw' or 'jpeg'.
        quality: quality of JPEGs, 1 to 100.
    """

    settings: dict[str, Any]
    env_meta: dict[str, Any]
    drop: Collection[str] = ()
    storage: ImageStorage = "raw"
    quality: int = 95


class RenderedFile:
    """Context manager that writes a file demo by demo, as ``<path>.partial`` until it is complete.

    After an exception or a kill -9 the partial file with complete demos remains.

    Args:
        path: the file to write.
        source: the file with the states.
        layout: settings of the file.
        overwrite: true to replace an existing file at the end, and the partial file of an interrupted run at once.
        resume: true to keep the demos of an interrupted run.

    Attributes:
        done: names of the finished demos.

    Raises:
        DatasetError: the file exists, was begun with other settings, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        source: DatasetFile,
        layout: RenderedLayout,
        *,
        overwrite: bool,
        resume: bool,
    ) -> None:
        self.path = path.expanduser()
        self._partial = partial_of(self.path)
        self._earlier = self.path.with_name(f"{self.path.name}.earlier")
        self._source, self._layout = source, layout
        self.done: list[str] = []
        self._check_free(overwrite, resume)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._set_aside(resume)
            self._journal = JournaledFile(self._partial)
        except OSError as error:
            raise self._unwritable(error) from error
        self._old = ConfinedFile(source.path, "r")
        self._file = h5py.File(self._journal, "w")
        try:
            data = self._file.create_group("data")
            copy_attrs(self._old["data"], data)
            data.attrs["env_args"] = json.dumps(layout.env_meta)
            data.attrs[SETTINGS] = json.dumps(layout.settings)
            data.attrs["total"] = 0
            self._commit()
            self._take_over()
        except BaseException:
            self._abandon()
            raise

    # ---- files of an interrupted run ------------------------------------------------------------

    def _check_free(self, overwrite: bool, resume: bool) -> None:
        if is_being_written(self._partial):
            raise DatasetError(
                f"{self.path}: another process is writing it: wait for it or choose another name"
            )
        if self.path.exists() and self.path.samefile(self._source.path):
            raise DatasetError(
                f"{self.path}: the input file cannot be the output file: name another with --out"
            )
        if self.path.exists() and not overwrite:
            raise DatasetError(
                f"{self.path}: exists already: choose another name, or replace it with --overwrite"
            )
        if not (overwrite or resume) and (self._partial.exists() or self._earlier.exists()):
            raise DatasetError(
                f"{self._partial}: the file is left from an interrupted run: --resume continues it, --overwrite "
                "starts again"
            )

    def _set_aside(self, resume: bool) -> None:
        """Rename the partial file of an interrupted run, so that its demos can be copied into a new partial file."""
        if not resume:
            self._earlier.unlink(missing_ok=True)
            return
        if self._earlier.exists():  # the resumed run was interrupted before it had copied all demos
            _check_settings(self._earlier, self._layout)
        elif self._partial.exists():
            roll_back(self._partial)
            _check_settings(self._partial, self._layout)
            give_name(self._partial, self._earlier)

    def _take_over(self) -> None:
        if not self._earlier.exists():
            return
        with ConfinedFile(self._earlier, "r") as earlier:
            for name, demo in earlier["data"].items():
                self._file["data"].copy(demo, name)
                self._counted(name)
        self._earlier.unlink()

    # ---- demos -----------------------------------------------------------------------------------

    def add(self, demo: str, drawn: Drawn) -> None:
        """Write a demo; it is on disk when the method returns.

        Raises:
            DatasetError: the demo is damaged in the source; it is not written.
        """
        data = self._file["data"]
        arrays = {f"obs/{key}": values for key, values in drawn.obs.items()}
        arrays |= {f"next_obs/{key}": values for key, values in (drawn.next_obs or {}).items()}
        drop = {*self._layout.drop, *arrays}
        try:
            with copying(self._source, demo):
                copy_demo(self._old["data"][demo], data, demo, FileChanges(drop=drop))
        except DatasetError:
            if demo in data:
                del data[demo]
            raise
        group = data[demo]
        for key, values in arrays.items():
            storage = self._layout.storage if values.ndim >= 3 else "raw"
            write_images(group, key, values, storage, self._layout.quality)
        group.attrs["camera_info"] = json.dumps(drawn.camera_info)
        self._counted(demo)

    def _counted(self, demo: str) -> None:
        data = self._file["data"]
        data.attrs["total"] = int(data.attrs["total"]) + int(data[demo].attrs["num_samples"])
        self._commit()
        self.done.append(demo)

    def _commit(self) -> None:
        self._file.flush()
        self._journal.commit()

    # ---- end -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        masks = read_masks(self._source)
        write_masks(
            self._file,
            {key: [demo for demo in demos if demo in self.done] for key, demos in masks.items()},
        )
        self._commit()
        self._file.close()
        self._old.close()
        self._journal.close()
        give_name(self._partial, self.path)

    def _abandon(self) -> None:
        """Close the partial file; remove it if it contains no demo."""
        self._journal.stop()
        with suppress(Exception):
            self._file.close()
        self._old.close()
        self._journal.close(roll_back=True)
        if not self.done and not self._earlier.exists():
            self._partial.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> DatasetError:
        reason = error.strerror or str(error).splitlines()[0]
        return DatasetError(
            f"{self.path}: cannot be written ({reason}): make room on the disk or choose another folder, then --resume"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            return
        try:
            self._finish()
        except OSError as failure:
            self._abandon()
            raise self._unwritable(failure) from failure


def finished_demos(path: Path, layout: RenderedLayout) -> list[str]:
    """Return the demos of a finished file, for a resumed run that has nothing left to do.

    Raises:
        DatasetError: the file was not written by a rendering, or with other settings.
    """
    with DatasetFile(path) as file:
        if SETTINGS not in file.file_attrs:
            raise DatasetError(
                f"{path}: exists already and was not rendered: choose another name, or replace it with --overwrite"
            )
        demos = list(file.demos())
    _check_settings(path, layout)
    return demos


def _check_settings(path: Path, layout: RenderedLayout) -> None:
    with DatasetFile(path) as file:
        found = json_value(file.file_attrs.get(SETTINGS, "{}"))
    wanted = json.loads(json.dumps(layout.settings))
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise DatasetError(
                f"{path}: the rendering was started with {key} = {found.get(key)!r}, but now {key} is "
                f"{wanted.get(key)!r}: resume with the same options and source, or start again with --overwrite"
            )


_HOPELESS = 3  # Number of lost demos, with none rendered, after which the rendering fails.


@dataclass
class RenderReport:
    """Report of a rendering.

    Attributes:
        path: the file.
        demos: number of demos in the file.
        resumed: number of demos that an interrupted run had rendered.
        steps: number of steps rendered in this run.
        images: number of colour, depth and segmentation images rendered in this run.
        seconds: wall time.
        size_mb: size of the file.
        keys: observations of the cameras.
        lost: for each demo that is missing in the file, the reason.
        differences: by recorded observation, the largest difference from the simulator's observation in the same state.
        recorded_with: robosuite's version when the demos were recorded.
        drawn_with: robosuite's version now.
    """

    path: str
    demos: int = 0
    resumed: int = 0
    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    size_mb: float = 0.0
    keys: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    recorded_with: str | None = None
    drawn_with: str | None = None


def render(
    path: str | Path,
    out: str | Path,
    cameras: tuple[Camera, ...],
    *,
    selection: Selection | None = None,
    keep_obs: bool = True,
    next_obs: bool = False,
    workers: int = 1,
    storage: ImageStorage = "raw",
    jpeg_quality: int = 95,
    resume: bool = False,
    overwrite: bool = False,
    on_start: Callable[[int], None] = lambda steps: None,
    on_demo: Callable[[str, int], None] = lambda demo, steps: None,
    step_timeout_s: float = STEP_TIMEOUT_S,
    backend: Backend[Any] | None = None,
) -> RenderReport:
    """Write a copy of a file with camera images for each recorded state.

    All other data are copied unchanged, except that ``next_obs`` is left out unless requested; training then takes the
    obs of the following step. A demo without recorded observations gets the simulator's observations. A demo that
    cannot be rendered is left out and reported.

    Args:
        path: a file with robosuite's states.
        out: the file to write; until it is complete, the data are in ``<out>.partial``.
        cameras: cameras to render.
        selection: demos to render, or None for all.
        keep_obs: keep the recorded observations.
        next_obs: also write the observation after each action, which doubles the size. The last one is rendered after
            executing the last action from the last state.
        workers: number of processes.
        storage: compression of images, see :class:`imitate.data.DatasetWriter`.
        jpeg_quality: quality of JPEGs, 1 to 100.
        resume: true to continue an interrupted run with the same settings; for a finished file only the report is
            returned.
        overwrite: replace an existing file.
        on_start: called once with the number of steps to render.
        on_demo: called after each demo, also a lost one, with its name and number of steps.
        step_timeout_s: seconds for setting and rendering a state, after which the simulator's process counts as hung
            and is ended; the demo is tried once more.
        backend: back end of the workers, or None for processes on this machine.

    Raises:
        DatasetError: the file cannot be read or written, or no demo could be rendered.
        EnvError: the environment cannot be made, or has no such camera.
    """
    started = time.monotonic()
    if not cameras:
        raise DatasetError(
            f"{path}: no camera is given: name one with --cameras, such as agentview"
        )
    with DatasetFile(Path(path).expanduser()) as file:
        drawing = Drawing(file.path, file.env_meta, cameras, next_obs)
        chosen = select(file, selection or Selection())
        if not chosen:
            raise DatasetError(
                f"{path}: no demo is selected: name others with --demos, or another --filter-key"
            )
        report = RenderReport(
            path=str(out),
            keys=drawing.keys,
            recorded_with=file.env_meta.get("env_version"),
            drawn_with=installed_robosuite() or "none",
        )
        tell_mismatch(file.env_meta)
        layout = _layout(file, drawing, keep_obs, storage, jpeg_quality)
        place = Path(out).expanduser()
        if resume and not overwrite and place.exists():
            _note_finished(report, place, finished_demos(place, layout), chosen)
            return report
        with RenderedFile(place, file, layout, overwrite=overwrite, resume=resume) as target:
            report.resumed = len(target.done)
            missing = [demo for demo in chosen if demo not in set(target.done)]
            lengths = {demo: file.length(demo) for demo in missing}
            on_start(sum(lengths.values()))
            with Crew[RecordedDemo, Drawn](
                functools.partial(Artist, drawing),
                min(workers, max(1, len(missing))),
                limits=Limits(call_s=step_timeout_s),
                backend=backend,
            ) as crew:

                def over(demo: str) -> None:
                    _check_hope(file, report, target, len(missing))
                    on_demo(demo, lengths[demo])

                items = _readable(file, drawing, missing, report, over)
                for done in crew.in_order(items):
                    _add(file, drawing, done.item.name, done.result, keep_obs, target, report)
                    over(done.item.name)
            report.lost = {demo: report.lost[demo] for demo in missing if demo in report.lost}
        report.demos = len(target.done)
    report.size_mb = target.path.stat().st_size / 1e6
    report.seconds = time.monotonic() - started
    return report


def _note_finished(
    report: RenderReport, place: Path, there: Sequence[str], chosen: Sequence[str]
) -> None:
    """Fill the report for a finished file to which nothing is added."""
    report.demos = report.resumed = len(there)
    report.size_mb = place.stat().st_size / 1e6
    for demo in chosen:
        if demo not in there:
            report.lost[demo] = "is not in the finished file: --overwrite draws all demos again"


def _layout(
    file: DatasetFile, drawing: Drawing, keep_obs: bool, storage: ImageStorage, quality: int
) -> RenderedLayout:
    meta = file.env_meta
    shown = camera_kwargs(drawing.cameras)
    kwargs = dict(meta.get("env_kwargs") or {})
    kwargs.pop("camera_segmentations", None)
    kwargs |= {**shown, "use_camera_obs": True, "has_offscreen_renderer": True}
    settings = {
        "source": file.path.name,
        "source_sha256": file.fingerprint()["sha256"],
        "cameras": shown,
        "keep_obs": keep_obs,
        "next_obs": drawing.next_obs,
        "storage": storage,
        "jpeg_quality": quality if storage == "jpeg" else None,
    }
    drop = {"obs": not keep_obs, "next_obs": not (keep_obs and drawing.next_obs)}
    return RenderedLayout(
        settings,
        {**meta, "env_kwargs": kwargs},
        [key for key, left_out in drop.items() if left_out],
        storage,
        quality,
    )


def _readable(
    file: DatasetFile,
    drawing: Drawing,
    demos: Sequence[str],
    report: RenderReport,
    over: Callable[[str], None],
) -> Iterator[RecordedDemo]:
    """Yield the data for rendering each demo; if they are incomplete, report the demo as lost and call ``over``."""
    for demo in demos:
        recorded = _recorded(file, drawing, demo, report)
        if recorded is None:
            over(demo)
        else:
            yield recorded


def _recorded(
    file: DatasetFile, drawing: Drawing, demo: str, report: RenderReport
) -> RecordedDemo | None:
    try:
        return drawing.recorded(file, demo)
    except UserError as error:
        report.lost[demo] = str(error)
        return None


def _kept(file: DatasetFile, demo: str, drawn: Drawn, drawing: Drawing, keep_obs: bool) -> Drawn:
    """Return the simulator's observations that are written into the file."""
    recorded = set(file.obs_keys(demo))
    low_dim = [key for key in drawn.obs if key not in drawing.keys]
    ours = set(drawing.keys) | (set(low_dim) if keep_obs and not recorded else set())
    following = drawn.next_obs
    if following is not None:
        there = set(file.obs_keys(demo, "next_obs"))
        wanted = ours | (recorded - there if keep_obs else set())
        following = {key: values for key, values in following.items() if key in wanted}
    obs = {key: values for key, values in drawn.obs.items() if key in ours}
    return Drawn(obs, following, drawn.camera_info)


def _add(
    file: DatasetFile,
    drawing: Drawing,
    demo: str,
    drawn: Drawn | Lost,
    keep_obs: bool,
    target: RenderedFile,
    report: RenderReport,
) -> None:
    """Write a demo, or report it as lost."""
    if isinstance(drawn, Lost):
        report.lost[demo] = drawn.reason
        return
    try:
        found = differences(file, demo, drawn, drawing.keys)
        target.add(demo, _kept(file, demo, drawn, drawing, keep_obs))
    except DatasetError as error:  # the demo is damaged in the source
        report.lost[demo] = str(error)
        return
    steps = len(next(iter(drawn.obs.values())))
    report.steps += steps
    report.images += steps * len(drawn.camera_info)
    _join(report.differences, found)


def _join(largest: dict[str, float], found: Mapping[str, float]) -> None:
    for key, value in found.items():
        largest[key] = max(value, largest.get(key, 0.0))


def _check_hope(file: DatasetFile, report: RenderReport, target: RenderedFile, count: int) -> None:
    if not target.done and len(report.lost) >= min(_HOPELESS, count):
        demo, reason = next(iter(report.lost.items()))
        lost = len(report.lost)
        tried = (
            f"none of {count} demos"
            if lost == count
            else f"none of the first {lost} of {count} demos"
        )
        raise DatasetError(f"{file.path}: {tried} could be rendered; demo '{demo}': {reason}")
