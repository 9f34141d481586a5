"""``imitate eval``: measure success rates of checkpoints, compare two, or rank checkpoints without episodes."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.options import (
    FAILED,
    ActingPrecision,
    AsJson,
    Lang,
    On,
    Quiet,
    RenameObs,
    StepTimeout,
    number_of_workers,
    opened,
    save,
    tell_saved_names,
)
from imitate.errors import ConfigError, UserError, printable
from imitate.system.processes import LOCAL, check_place

if TYPE_CHECKING:
    from imitate.evaluate.job import EvaluatedPolicy
    from imitate.evaluate.result import EvalResult
    from imitate.evaluate.settings import Lateness
    from imitate.policy.renaming import Rename

ALL = "all"
"""Name that stands for all environments of a checkpoint."""


class Inference(str, Enum):
    """Behaviour of the robot while the next chunk is predicted, with ``--latency-ms``."""

    sync = "sync"
    asynchronous = "async"
    rtc = "rtc"
    rtc_vjp = "rtc-vjp"
    prefix = "prefix"


class Mode(str, Enum):
    """Distribution of the episodes: one policy per worker process, or one policy for many environments."""

    auto = "auto"
    processes = "processes"
    vector = "vector"


def command(
    agent: Annotated[
        list[Path],
        typer.Option(
            "--agent",
            "-a",
            help="Policy to evaluate: checkpoint, run folder, or folder of runs (the newest run is used); give two "
            "to compare them. With one --env also: scripted (the task's expert), module:function (an expert of "
            "your own), or random (random actions).",
        ),
    ],
    more: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[AGENT]...",
            help="Further policies, so that the shell may expand a pattern: --agent "
            "runs/*/checkpoints/best.pth",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Number of episodes to play.")
    ] = 50,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            min=1,
            help="Number of processes; default: one per core, or on a cluster as many as fit.",
        ),
    ] = None,
    on: On = LOCAL,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Episode i starts from seed + i.")] = 0,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon", min=1, help="Largest number of steps per episode; default: as in training."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            help="Environment to evaluate in. One of the checkpoint's environments, or another: a gymnasium name "
            "(module:Name-v0), a robosuite task, a robot (robot:NAME, robot:sim), a JSON file of env_args; may "
            "be repeated. Default, and with 'all': all environments of the policy's training.",
        ),
    ] = None,
    lang: Lang = None,
    rename: RenameObs = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            help="processes: each worker process has its own copy of the policy; vector: environments step together "
            "and share batched policy calls; auto: vector on a GPU and for large policies, otherwise processes.",
        ),
    ] = Mode.auto,
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu or cuda; default: chosen by the size of the network."),
    ] = None,
    precision: ActingPrecision = "fp32",
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon",
            min=0.0,
            max=1.0,
            help="Probability with which a random action replaces the policy's; with 1 the policy is random.",
        ),
    ] = 0.0,
    video: Annotated[
        Path | None,
        typer.Option("--video", help="Write a video of the first episodes to this .mp4 file."),
    ] = None,
    video_episodes: Annotated[
        int,
        typer.Option(
            "--video-episodes", min=1, max=16, help="Number of episodes shown side by side."
        ),
    ] = 9,
    video_skip: Annotated[
        int, typer.Option("--video-skip", min=1, help="Draw one frame every this many steps.")
    ] = 5,
    overlay: Annotated[
        bool,
        typer.Option(
            "--overlay",
            help="With --video: draw the end-effector path of the planned actions and the keypoints of a spatial "
            "softmax onto the frames.",
        ),
    ] = False,
    json_: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write all results to this JSON file, including the seed of each episode.",
        ),
    ] = None,
    table_file: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Write each result to this file as soon as it is known, in the form of --out, so that --resume can "
            "continue.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip the evaluations and episodes that an interrupted command already wrote to --table.",
        ),
    ] = False,
    fqe: Annotated[
        bool,
        typer.Option(
            "--fqe",
            help="Play no episodes: rank the checkpoints (in a run folder: all) by their return, as fitted Q "
            "evaluation estimates it from recorded rewards.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="With --fqe or --uncertainty: demonstrations to evaluate on; default: the training's demonstrations.",
        ),
    ] = None,
    discount: Annotated[
        float | None,
        typer.Option(
            "--discount",
            min=0.0,
            max=0.9999,
            help="With --fqe: discount of the return; default: the discount of the training, or 0.99 if it has none.",
        ),
    ] = None,
    uncertainty: Annotated[
        Path | None,
        typer.Option(
            "--uncertainty",
            metavar="OTHER",
            help="Play no episodes, but compute the AUROC with which the policy's uncertainty distinguishes "
            "the held-out demonstrations of the training (or --data) from the demonstrations in this file.",
        ),
    ] = None,
    updates: Annotated[
        int,
        typer.Option(
            "--updates",
            min=1,
            help="With --fqe: number of updates of the value networks per checkpoint.",
        ),
    ] = 5000,
    step_timeout_s: StepTimeout = 60.0,
    latency_ms: Annotated[
        float | None,
        typer.Option(
            "--latency-ms",
            min=0.0,
            help="Simulate that a prediction takes this many milliseconds; meanwhile the simulation continues, as on "
            "a robot.",
        ),
    ] = None,
    inference: Annotated[
        Inference,
        typer.Option(
            "--inference",
            help="What happens during --latency-ms. sync: the robot waits; async: it executes the previous chunk, "
            "and the next one is joined to it; rtc, rtc-vjp: async with real-time chunking; prefix: real-time "
            "chunking of policies trained with algo.prefix.max_delay.",
        ),
    ] = Inference.sync,
    quiet: Quiet = False,
) -> None:
    """Measure success rate and return of checkpoints, and compare two on the same seeds.

    All checkpoints and environments share the same worker processes; with
    --on ray they run on a cluster (docs/cluster.md). With --table a
    measurement of many checkpoints may be interrupted at any time; the same
    command with --resume continues it.

    For an environment that reports no success, only the return is shown.

    With --fqe no simulator is needed: checkpoints are ranked by fitted Q
    evaluation on demonstrations with rewards. docs/offline_rl.md shows how reliable it is.

    Exit codes: 0 done; 1 an episode could not be played; 2 invalid input.
    """
    agent, drawn = _made([*agent, *(more or ())], env)
    late = _lateness(latency_ms, inference)
    if fqe and uncertainty is not None:
        raise ConfigError(
            "--fqe and --uncertainty cannot be measured by one command: leave one of them out"
        )
    _refuse_mixture(
        offline="--fqe" if fqe else None if uncertainty is None else "--uncertainty",
        video=video,
        overlay=overlay,
        late=late,
        data=data,
        discount=discount,
        table=table_file,
        resume=resume,
        on=on,
    )
    if fqe:
        from imitate.cli.eval_offline import rank

        rank(
            agent,
            data,
            discount=discount,
            updates=updates,
            seed=seed,
            as_json=json_,
            out=out,
            quiet=quiet,
        )
        return

    if uncertainty is not None:
        from imitate.cli.eval_offline import measure

        checkpoints = _checkpoints(agent, quiet=quiet)
        measure(checkpoints, uncertainty, data, device=device, as_json=json_, out=out)
        return

    from imitate.cli.eval_jobs import evaluated
    from imitate.envs.make import is_robot
    from imitate.evaluate.job import EvalJob, default_workers, subject_of
    from imitate.evaluate.settings import EvalSettings
    from imitate.policy.renaming import parse_rename

    paths = _checkpoints(agent, quiet=quiet)
    names = parse_rename(rename or ())
    subjects = {path: subject_of(path) for path in dict.fromkeys(paths)}
    pairs = [
        (subjects[path], meta)
        for path in paths
        for meta in _environments(subjects[path], env, lang, names)
    ]
    num = episodes * len(pairs)
    gpus = 1.0 if device is not None and device.startswith("cuda") else 0.0
    with opened(on, gpus=gpus, name="imitate-episodes") as backend:
        num_workers = number_of_workers(workers, backend, num, default_workers(num))
        settings = EvalSettings(
            episodes=episodes,
            horizon=horizon,
            seed=seed,
            workers=num_workers,
            mode=mode.value if on == LOCAL or mode is not Mode.auto else Mode.processes.value,
            device=device if on == LOCAL else device or "cpu",
            video_episodes=video_episodes,
            video_skip=video_skip,
            overlay=overlay,
            step_timeout_s=step_timeout_s,
            late=late,
            rename=names,
            precision=precision,
            epsilon=epsilon,
        )
        jobs = [
            EvalJob(
                subject,
                meta,
                replace(
                    settings,
                    workers=workers or (1 if is_robot(meta) else num_workers),
                    epsilon=1.0 if subject.path in drawn else epsilon,
                    video=_numbered(video, number if len(pairs) > 1 else None),
                ),
            )
            for number, (subject, meta) in enumerate(pairs)
        ]
        results, failures = evaluated(
            jobs, num_workers, table_file, backend=backend, resume=resume, quiet=quiet
        )
    _tell(paths, results, failures, as_json=json_, out=out)
    if failures or any(result.not_played for result in results):
        raise typer.Exit(FAILED)


def _tell(
    paths: Sequence[Path],
    results: Sequence[EvalResult],
    failures: Sequence[str],
    *,
    as_json: bool,
    out: Path | None,
) -> None:
    """Print the results as a table or as JSON, warnings and notes, and write the JSON file if one is given."""
    from imitate.cli.eval_jobs import (
        compare,
        comparison_lines,
        cpu_warning,
        mean_lines,
        table,
    )

    comparison = None if failures else compare(paths, results)
    if results and not as_json:
        for line in (*table(results), *mean_lines(results), *comparison_lines(comparison)):
            typer.echo(printable(line))
    report: dict[str, Any] = {"evaluations": [result.to_dict() for result in results]}
    if comparison is not None:
        report["comparison"] = comparison.to_dict()
    save(report, as_json=as_json, out=out)
    warnings = [warning for result in results for warning in result.warnings]
    if comparison is not None:
        warnings += filter(None, [cpu_warning(results)])
    for warning in warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    notes = filter(None, (result.horizon_note("--horizon ") for result in results))
    for note in dict.fromkeys(notes):
        typer.echo(f"note: {note}", err=True)
    for failure in failures:
        typer.echo(printable(f"error: {failure}"), err=True)


def _lateness(latency_ms: float | None, inference: Inference) -> Lateness | None:
    """Return the simulated latency of ``--latency-ms`` and ``--inference``; None without ``--latency-ms``."""
    from imitate.evaluate.settings import Lateness

    if latency_ms is None:
        if inference is not Inference.sync:
            raise ConfigError(
                f"--inference {inference.value} needs --latency-ms: add the milliseconds that a "
                "prediction takes"
            )
        return None
    return Lateness(latency_ms, inference.value)


def _made(agents: Sequence[Path], env: Sequence[str] | None) -> tuple[list[Path], frozenset[Path]]:
    """Return the checkpoint path of each agent, and the set of paths whose agents act at random.

    For an agent that is a program (``scripted``, ``module:function``, ``random``) a temporary checkpoint is written.
    """
    from imitate.cli.mistakes import PROGRAMS
    from imitate.config.algorithms import RANDOM, is_scripted

    names = [str(path) for path in agents]
    if not any(map(is_scripted, names)):
        return list(agents), frozenset()
    if env is None or len(env) != 1:
        raise ConfigError(
            "--agent: scripted, random and module:function need exactly one environment: name it with --env"
        )
    from imitate.cli.eval_jobs import write_scripted

    temporary = TemporaryDirectory(prefix=PROGRAMS)
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    paths = [
        write_scripted(name, env[0], folder / f"{name}.pth") if is_scripted(name) else path
        for name, path in zip(names, agents, strict=True)
    ]
    return paths, frozenset({folder / f"{RANDOM}.pth"})


def _checkpoints(agents: Sequence[Path], *, quiet: bool) -> list[Path]:
    """Return the agents' checkpoint files; for each folder print which checkpoint is used."""
    from imitate.system.run_folder import find_checkpoint

    paths = [find_checkpoint(path) for path in agents]
    for named, path in zip(agents, paths, strict=True):
        if named != path and not quiet:
            typer.echo(f"{named}: {path}", err=True)
    return paths


def _refuse_mixture(
    *,
    offline: str | None,
    video: Path | None,
    overlay: bool,
    late: Lateness | None,
    data: Path | None,
    discount: float | None,
    table: Path | None,
    resume: bool,
    on: str,
) -> None:
    """Raise ConfigError for options that contradict each other.

    ``offline`` is ``--fqe`` or ``--uncertainty`` if one of them is given: no episodes are played then.
    """
    check_place(on)
    if offline is not None:
        shown = {
            "--on is for the workers of episodes": on != LOCAL,
            "--video shows episodes": video is not None,
            "--latency-ms delays the actions of episodes": late is not None,
            "--table lists episodes": table is not None,
        }
        for words in (words for words, given in shown.items() if given):
            instead = "write --out FILE" if "--table" in words else "leave one of them out"
            raise ConfigError(f"{words}, but {offline} plays none: {instead}")
    if offline != "--fqe" and discount is not None:
        raise ConfigError("--discount needs --fqe: add --fqe, or leave --discount out")
    if offline is None and data is not None:
        raise ConfigError(
            "--data needs --fqe or --uncertainty: add one of them, or leave --data out"
        )
    if resume and table is None:
        raise ConfigError("--resume continues a table: name it with --table FILE")
    if overlay and video is None:
        raise ConfigError("--overlay draws onto a video: name the file with --video FILE.mp4")


def _environments(
    subject: EvaluatedPolicy, names: Sequence[str] | None, lang: str | None, rename: Rename
) -> list[dict[str, Any]]:
    """Return the env_args of the environments to evaluate in.

    ``names`` are environments of the checkpoint, or any others; None stands for all of the checkpoint.

    Raises:
        UserError: the policy has no observation with a name in ``rename``.
    """
    from imitate.evaluate.environments import at_rate, named_env
    from imitate.policy.renaming import given_names, joined

    # A typo in --rename is reported before the user is asked to trust the environment.
    try:
        given_names(joined(subject.rename, rename), subject.obs_keys)
    except UserError as error:
        raise UserError(f"{subject.file}: {error}") from error
    tell_saved_names(subject.file, subject.rename)
    metas: list[dict[str, Any]] = []
    for env in names or [ALL]:
        called = [m for m in subject.environments if env in (ALL, m.get("key"), m.get("env_name"))]
        if not called:
            other = at_rate(named_env(env, subject.env_meta), subject.control_freq)
            called = [{**other, "key": other.get("env_name", env)}]
        metas += [meta for meta in called if meta not in metas]
    if lang is None:
        return metas
    matching = [meta for meta in metas if meta.get("lang") == lang]
    return matching or [{**meta, "lang": lang} for meta in metas]


def _numbered(video: Path | None, number: int | None) -> Path | None:
    if video is None or number is None:
        return video
    return video.with_name(f"{video.stem}_{number + 1}{video.suffix}")
