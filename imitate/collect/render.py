"""Rendering of recorded simulator states: a demonstration file with the observations of cameras."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imitate.collect.drawing import Artist, Drawing, Drawn, differences
from imitate.collect.recorded import RecordedDemo
from imitate.collect.render_file import RenderedFile, RenderedLayout, finished_demos
from imitate.crew import Crew, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.selection import Selection, select
from imitate.data.file.image_codec import ImageStorage
from imitate.envs.cameras import Camera, camera_kwargs
from imitate.envs.migration import installed_robosuite, tell_mismatch
from imitate.errors import DatasetError, UserError
from imitate.system.processes import STEP_TIMEOUT_S

_HOPELESS = 3  # If this many demos are lost at the beginning and none is rendered, single demos are not the cause.


@dataclass
class RenderReport:
    """Report of a rendering.

    Attributes:
        path: the file.
        demos: number of demos in it.
        resumed: number of demos that an interrupted run had rendered.
        steps: number of steps rendered in this run.
        images: number of images rendered in this run, of any kind: one per state and camera.
        seconds: wall time.
        size_mb: size of the file.
        keys: observations of the cameras.
        lost: reason by demo that is not in the file.
        differences: per recorded observation, the largest difference from what the simulator shows in the same state.
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
    """Write a copy of a file with images of cameras in each recorded state.

    All other data are copied unchanged, except that ``next_obs`` is left out unless requested: readers take the
    following observation where a file has none. A demo without recorded observations gets those of the simulator. A
    demo that cannot be drawn is left out and reported.

    Args:
        path: a file with robosuite's states.
        out: the file to write; until it is complete, the data are in ``<out>.partial``.
        cameras: cameras to render.
        selection: the demos to draw, or None for all.
        keep_obs: keep the recorded observations.
        next_obs: also write the observation after each action, which doubles the size. The last one is drawn after
            playing the last action from the last state.
        workers: number of processes.
        storage: storage of images; see :class:`imitate.data.DatasetWriter`.
        jpeg_quality: 1 to 100.
        resume: continue an interrupted run with the same settings; a finished file is only reported.
        overwrite: replace an existing file.
        on_start: called with the number of steps to draw.
        on_demo: called after each demo with its name and number of steps, also when it is lost.
        step_timeout_s: a state that takes longer to be set and drawn ends its process: the demo is tried once more.
        backend: where the workers run; None: in processes of this machine.

    Raises:
        DatasetError: the file cannot be drawn from or written, or no demo could be drawn.
        EnvError: the environment cannot be made, or has no such camera.
    """
    started = time.monotonic()
    if not cameras:
        raise DatasetError(f"{path}: no camera is given: name one, such as agentview")
    with DatasetFile(Path(path).expanduser()) as file:
        drawing = Drawing(file.path, file.env_meta, cameras, next_obs)
        chosen = select(file, selection or Selection())
        if not chosen:
            raise DatasetError(f"{path}: no demo is selected: name others, or another filter key")
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
    """Report a finished file to which nothing is added."""
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
    """Yield the data needed to render each demo; a demo that lacks them is reported as lost, and ``over`` is called."""
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
    """Select the observations to write."""
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
    except DatasetError as error:  # the source is damaged in this demo
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
        raise DatasetError(f"{file.path}: {tried} could be drawn; demo '{demo}': {reason}")
