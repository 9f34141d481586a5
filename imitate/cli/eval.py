"""``imitate eval``: success of a checkpoint, or of two on the same initial states; a ranking without episodes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.progress import Progress
from imitate.errors import ConfigError, printable

if TYPE_CHECKING:
    from imitate.evaluation.episodes import Episode
    from imitate.evaluation.eval_result import EvalResult
    from imitate.evaluation.late import Lateness
    from imitate.functional.statistics import PairedComparison

FAILED = 1


class Inference(str, Enum):
    """Execution of chunks while a prediction is computed."""

    sync = "sync"
    asynchronous = "async"
    rtc = "rtc"
    rtc_vjp = "rtc-vjp"
    prefix = "prefix"


class Mode(str, Enum):
    """Way of playing the episodes."""

    auto = "auto"
    processes = "processes"
    vector = "vector"


def command(
    agent: Annotated[
        list[Path],
        typer.Option(
            "--agent",
            "-a",
            help="Checkpoint, run folder, or folder of runs (its newest); give it twice to compare.",
        ),
    ],
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="Episodes.")] = 50,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="Processes; one per core if left out."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Episode i starts from seed + i.")] = 0,
    horizon: Annotated[
        int | None,
        typer.Option("--horizon", min=1, help="Longest episode; as trained if left out."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="One of the checkpoint's environments, or another: a gymnasium name (module:Name-v0), a robosuite "
            "task, a robot (robot:NAME, robot:sim), a JSON file of env_args. By default all that it was trained on.",
        ),
    ] = None,
    lang: Annotated[
        str | None,
        typer.Option("--lang", help="Instruction for a policy that is conditioned on language."),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode", help="processes: a policy each; vector: lockstep with batched policy calls."
        ),
    ] = Mode.auto,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda; chosen by size if left out.")
    ] = None,
    video: Annotated[Path | None, typer.Option("--video", help="mp4 to write.")] = None,
    video_episodes: Annotated[
        int, typer.Option("--video-episodes", min=1, max=16, help="Episodes shown side by side.")
    ] = 9,
    video_skip: Annotated[
        int, typer.Option("--video-skip", min=1, help="A frame every so many steps.")
    ] = 5,
    overlay: Annotated[
        bool,
        typer.Option(
            "--overlay",
            help="Draw onto the video: the end-effector path of the planned actions, keypoints of a spatial softmax.",
        ),
    ] = False,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write everything, per-episode seeds too.")
    ] = None,
    fqe: Annotated[
        bool,
        typer.Option(
            "--fqe",
            help="No episodes: rank the checkpoints, all of a run folder, by what they are worth on recorded rewards.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="With --fqe: demonstrations; as trained on if left out."),
    ] = None,
    discount: Annotated[
        float | None,
        typer.Option(
            "--discount", min=0.0, max=0.9999, help="With --fqe; as trained, or 0.99, if left out."
        ),
    ] = None,
    updates: Annotated[
        int, typer.Option("--updates", min=1, help="With --fqe: of the values of each checkpoint.")
    ] = 5000,
    step_timeout_s: Annotated[
        float,
        typer.Option(
            "--step-timeout-s",
            min=0.001,
            help="Seconds after which a step, a reset or a picture counts as hung (making an environment: five times "
            "as long). Its process is replaced; the second time the episode has failed.",
        ),
    ] = 60.0,
    latency_ms: Annotated[
        float | None,
        typer.Option(
            "--latency-ms",
            min=0.0,
            help="A prediction takes so long, and the world goes on meanwhile, as on a robot.",
        ),
    ] = None,
    inference: Annotated[
        Inference,
        typer.Option(
            "--inference",
            help="With --latency-ms. sync: the robot waits; async: chunks are joined; rtc, rtc-vjp: real-time "
            "chunking; prefix: the same for policies trained with algo.prefix.max_delay.",
        ),
    ] = Inference.sync,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure the success rate of a checkpoint, or compare two on the same seeds.

    With --fqe no simulator is needed: checkpoints are ranked by fitted Q
    evaluation on demonstrations with rewards. How far to trust it:
    docs/offline_rl.md.

    Exit codes: 0 done; 1 an episode could not be played; 2 invalid input.
    """
    late = _lateness(latency_ms, inference)
    _refuse_mixture(
        agent, fqe=fqe, video=video, overlay=overlay, late=late, for_fqe=(data, discount)
    )
    if fqe:
        from imitate.cli.eval_fqe import rank

        rank(
            agent,
            data,
            discount=discount,
            updates=updates,
            seed=seed,
            json_file=json_,
            quiet=quiet,
        )
        return

    from imitate.envs.make import is_robot
    from imitate.errors import EvaluationError
    from imitate.evaluation.evaluate import default_workers, evaluate
    from imitate.run_folder import to_json, write_text

    paths = _checkpoints(agent, quiet=quiet)
    results = []
    places = [(path, meta) for path in paths for meta in _environments(path, env, lang)]
    for number, (path, env_meta) in enumerate(places):
        try:
            with Progress(episodes, "episode", "eval", quiet=quiet) as progress:
                result = evaluate(
                    path,
                    env_meta,
                    episodes=episodes,
                    horizon=horizon,
                    seed=seed,
                    workers=workers or (1 if is_robot(env_meta) else default_workers(episodes)),
                    mode=mode.value,
                    device=device,
                    video=_numbered(video, number if len(places) > 1 else None),
                    video_episodes=video_episodes,
                    video_skip=video_skip,
                    overlay=overlay,
                    on_episode=_Successes(progress).add,
                    step_timeout_s=step_timeout_s,
                    late=late,
                )
        except EvaluationError as error:
            typer.echo(printable(f"error: {path}: {error}"), err=True)
            raise typer.Exit(FAILED) from None
        results.append(result)
    comparison = _compare(paths, results)
    for line in (*table(results), *mean_lines(results), *comparison_lines(comparison)):
        typer.echo(printable(line))
    if json_ is not None:
        report: dict[str, Any] = {"evaluations": [result.to_dict() for result in results]}
        if comparison is not None:
            report["comparison"] = comparison._asdict()
        json_.parent.mkdir(parents=True, exist_ok=True)
        write_text(json_, to_json(report, indent=2) + "\n")
    for warning in (warning for result in results for warning in result.warnings):
        typer.echo(printable(f"warning: {warning}"), err=True)
    notes = filter(None, (result.horizon_note("--horizon ") for result in results))
    for note in dict.fromkeys(notes):
        typer.echo(f"note: {note}", err=True)
    if any(result.not_played for result in results):
        raise typer.Exit(FAILED)


def _lateness(latency_ms: float | None, inference: Inference) -> Lateness | None:
    """Return the settings of ``--latency-ms`` and ``--inference``."""
    from imitate.evaluation.late import Lateness

    if latency_ms is None:
        if inference is not Inference.sync:
            raise ConfigError(f"--inference {inference.value} is for --latency-ms: say how late")
        return None
    return Lateness(latency_ms, inference.value)


def _checkpoints(agents: Sequence[Path], *, quiet: bool) -> list[Path]:
    """Return the checkpoints; print which one a folder stands for."""
    from imitate.run_folder import find_checkpoint

    paths = [find_checkpoint(path) for path in agents]
    for named, path in zip(agents, paths, strict=True):
        if named != path and not quiet:
            typer.echo(f"{named}: {path}", err=True)
    return paths


def _refuse_mixture(
    agent: Sequence[Path],
    *,
    fqe: bool,
    video: Path | None,
    overlay: bool,
    late: Lateness | None,
    for_fqe: Sequence[object],
) -> None:
    """Refuse options that contradict each other."""
    if fqe and video is not None:
        raise ConfigError("--video shows episodes, and --fqe plays none: leave one of them out")
    if fqe and late is not None:
        raise ConfigError(
            "--latency-ms delays the actions of episodes, and --fqe plays none: leave one of them out"
        )
    if not fqe and any(value is not None for value in for_fqe):
        raise ConfigError("--data and --discount are for --fqe: add it, or leave them out")
    if not fqe and len(agent) > 2:
        raise ConfigError(
            f"--agent was given {len(agent)} times: give one checkpoint, or two to compare"
        )
    if overlay and video is None:
        raise ConfigError("--overlay draws onto a video: say which to write with --video FILE.mp4")


def table(results: Sequence[EvalResult]) -> list[str]:
    """Return the table's lines, a row per checkpoint."""
    header = ("checkpoint", "env", "success", "95 % interval", "return", "steps", "seconds")
    rows = [header]
    for result in results:
        low, high = result.interval
        rows.append(
            (
                _short(result.checkpoint),
                result.env_name,
                f"{result.successes}/{len(result.episodes)} = {100 * result.success_rate:.1f} %",
                f"{100 * low:.1f} - {100 * high:.1f} %",
                f"{result.mean_return:.3g}",
                f"{result.mean_length:.1f}",
                f"{result.wall_s:.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    seeds = results[0].seeds
    lines.append(f"seeds {seeds[0]} - {seeds[-1]}, horizon {results[0].horizon}")
    lines += [f"video: {result.video}" for result in results if result.video]
    return lines


def mean_lines(results: Sequence[EvalResult]) -> list[str]:
    """Return each checkpoint's mean success over its environments, where there are several."""
    rates: dict[str | None, list[float]] = {}
    for result in results:
        rates.setdefault(result.checkpoint, []).append(result.success_rate)
    return [
        f"{_short(checkpoint)}: mean of {len(found)} environments {100 * fmean(found):.1f} %"
        for checkpoint, found in rates.items()
        if len(found) > 1
    ]


def comparison_lines(comparison: PairedComparison | None) -> list[str]:
    """Return the lines of a comparison of two checkpoints on the same seeds."""
    if comparison is None:
        return []
    c = comparison
    return [
        f"paired on {c.n} seeds: first - second = {100 * c.difference:+.1f} % "
        f"(95 % interval {100 * c.low:+.1f} to {100 * c.high:+.1f} %); "
        f"only the first succeeds {c.only_first} times, only the second {c.only_second}; "
        f"p = {c.p_value:.3g} (exact McNemar test)"
    ]


class _Successes:
    """Counts episodes and successes for the progress of an evaluation."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._successes = progress, 0

    def add(self, episode: Episode) -> None:
        """Count an episode that has ended."""
        self._successes += episode.success
        self._progress.advance(words=f"{self._successes} succeed")


def _environments(path: Path, env: str | None, lang: str | None) -> list[dict[str, Any]]:
    """Return a checkpoint's evaluation environments: its own, those called ``env``, or the first under that name."""
    from imitate.evaluation.environments import at_rate, named_env
    from imitate.policy.checkpoint import control_freq_of, load_checkpoint

    ckpt = load_checkpoint(path)
    metas: list[dict[str, Any]] = ckpt.get("environments") or [ckpt["env_metadata"]]
    if env is not None:
        called = [meta for meta in metas if env in (meta.get("key"), meta.get("env_name"))]
        other = at_rate(named_env(env, ckpt["env_metadata"]), control_freq_of(ckpt))
        metas = called or [{**other, "key": other.get("env_name", env)}]
    if lang is None:
        return metas
    told = [meta for meta in metas if meta.get("lang") == lang]
    return told or [{**meta, "lang": lang} for meta in metas]


def _compare(paths: Sequence[Path], results: Sequence[EvalResult]) -> PairedComparison | None:
    """Two checkpoints on the same seeds of the same environments, all episodes together."""
    half = len(results) // 2
    first, second = results[:half], results[half:]
    if len(paths) != 2 or [r.env_name for r in first] != [r.env_name for r in second]:
        return None
    from imitate.functional.statistics import compare_paired

    return compare_paired(
        [success for result in first for success in result.success],
        [success for result in second for success in result.success],
    )


def _numbered(video: Path | None, number: int | None) -> Path | None:
    if video is None or number is None:
        return video
    return video.with_name(f"{video.stem}_{number + 1}{video.suffix}")


def _short(checkpoint: str | None) -> str:
    return "-" if checkpoint is None else "/".join(Path(checkpoint).parts[-3:])
