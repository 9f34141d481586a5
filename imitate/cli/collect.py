"""``imitate collect``: collect demonstrations in a simulator, from scripted experts or a person at a device."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from imitate.cli.options import (
    FAILED,
    INTERRUPTED,
    AsJson,
    On,
    Overwrite,
    Quiet,
    Resume,
    Seed,
    StepTimeout,
    TeleopArgs,
    Workers,
    json_object,
    number_of_workers,
    opened,
)
from imitate.cli.progress import Progress
from imitate.cli.robot.record import RecordingSession
from imitate.collect.collect import CollectionReport, collect
from imitate.collect.demonstrate import Plan
from imitate.envs.experts import EXPERTS, QUALITIES, ExpertKind, Habits, find_expert
from imitate.errors import UserError
from imitate.evaluate.environments import laid_over, named_env
from imitate.system.processes import LOCAL
from imitate.system.text import counted


class Quality(str, Enum):
    """Demonstrators to record: only the expert, or demonstrators of different skill in turn."""

    expert = "expert"
    mixed = "mixed"


class Rewards(str, Enum):
    """Rewards of the environment: sparse (1 on success) or dense (shaped)."""

    sparse = "sparse"
    dense = "dense"


class Label(str, Enum):
    """Action to record: the executed one or the expert's."""

    executed = "executed"
    expert = "expert"


_OF_A_PERSON = (
    "view",
    "env",
    "out",
    "num",
    "teleop",
    "teleop_arg",
    "append",
    "seed",
    "horizon",
    "overwrite",
    "json_",
)
"""Parameters whose options are allowed with ``--teleop``; all other options are for scripted experts."""
_PERSONS_HORIZON = 1000
_OF_AN_EXPERT = (
    "noise",
    "quality",
    "human_like",
    "label",
    "keep_failures",
    "rewards",
)
"""Parameters whose options are not allowed with ``--agent``."""


def command(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", help="HDF5 file to write, or with --shard-demos a folder.")
    ],
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help=f"Task with a scripted expert: {', '.join(EXPERTS)}, metaworld:push-v3, "
            "gymnasium_robotics:FetchPush-v4, gym_aloha:gym_aloha/AlohaTransferCube-v0 (docs/environments.md); "
            "with --teleop any environment; with --agent by default the environment in which the policy was "
            "trained.",
        ),
    ] = None,
    agent: Annotated[
        Path | None,
        typer.Option(
            "--agent",
            "-a",
            help="Checkpoint or run folder of a policy. Its episodes, also failed ones, are recorded instead of an "
            "expert's, without added noise.",
        ),
    ] = None,
    num: Annotated[
        int,
        typer.Option(
            "--num",
            min=1,
            help="Number of demonstrations to record; with --agent, number of the policy's episodes.",
        ),
    ] = 100,
    workers: Workers = None,
    on: On = LOCAL,
    shard_demos: Annotated[
        int | None,
        typer.Option(
            "--shard-demos",
            min=1,
            metavar="N",
            help="Write a folder of files with N demonstrations each, and at the end an index.json, so that the "
            "folder can be used as one dataset.",
        ),
    ] = None,
    seed: Seed = 0,
    noise: Annotated[
        float, typer.Option("--noise", min=0.0, help="Scale of the action noise; 0 for no noise.")
    ] = 1.0,
    quality: Annotated[
        Quality,
        typer.Option(
            "--quality",
            help="mixed: four demonstrators (better, okay, worse, noise) act in turn, and the demos of each get a "
            "filter key of this name; failed attempts are kept. Only for robosuite tasks with one arm.",
        ),
    ] = Quality.expert,
    human_like: Annotated[
        bool,
        typer.Option(
            "--human-like",
            help="Imitate a person's habits: waiting, hesitation before the grasp, "
            "overshooting, missed grasps, unsteady hands, another path and speed in "
            "each episode. Not with --quality mixed.",
        ),
    ] = False,
    label: Annotated[
        Label,
        typer.Option(
            "--label",
            help="executed: actions as carried out, with noise; expert: as the expert computed them.",
        ),
    ] = Label.executed,
    keep_failures: Annotated[
        bool, typer.Option("--keep-failures", help="Record failed attempts too.")
    ] = False,
    env_kwargs: Annotated[
        str | None,
        typer.Option(
            "--env-kwargs",
            metavar="JSON",
            help='Arguments for making the environment, as JSON, such as \'{"camera_names": ["corner2"]}\' for images '
            "of Meta-World.",
        ),
    ] = None,
    rewards: Annotated[
        Rewards,
        typer.Option(
            "--rewards",
            help="Rewards to record. sparse: 1 in steps in which the task is solved, otherwise 0; dense: the "
            "environment's shaped rewards.",
        ),
    ] = Rewards.sparse,
    signals: Annotated[
        list[str] | None,
        typer.Option(
            "--signals",
            metavar="NAME",
            help="Name of a number in the environment's step info to record for algo.rewards, such as joint_speed or "
            "contact_force of robosuite's tasks; repeatable.",
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon",
            min=1,
            help="Number of steps after which an attempt counts as failed. Default: the expert's own limit; with "
            f"--agent the horizon of the policy's training; with --teleop {_PERSONS_HORIZON}.",
        ),
    ] = None,
    hold: Annotated[
        int,
        typer.Option("--hold", min=0, help="Number of steps to record after the first success."),
    ] = 8,
    step_timeout_s: StepTimeout = 60.0,
    overwrite: Overwrite = False,
    resume: Resume = False,
    teleop: Annotated[
        str | None,
        typer.Option(
            "--teleop",
            metavar="DEVICE",
            help="Device with which a person demonstrates in real time: keyboard, gamepad, spacemouse, or another "
            "that imitate record takes.",
        ),
    ] = None,
    teleop_arg: TeleopArgs = None,
    view: Annotated[
        bool, typer.Option("--view", help="With --teleop: show a robosuite scene in a window.")
    ] = False,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="With --teleop: add episodes to an existing file, also to one that a crash left "
            "unfinished.",
        ),
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Record demonstrations of a scripted expert or a person in a simulator, or the episodes of a policy.

    With --teleop a person demonstrates at a device in the simulated environment, in real time, as with imitate record
    OUT --robot sim --env ENV --teleop DEVICE.

    With --on ray the simulators run on a cluster (docs/cluster.md). A collection may be interrupted at any time;
    the same command with --resume continues it.

    Exit code 1: the simulator crashed or hung twice in some episodes; they are listed and are not in the file.
    """
    if env is None and (agent is None or teleop is not None):
        raise UserError("--env is missing: name a task by --env, or a policy by --agent")
    if teleop is not None:
        _refuse(ctx, lambda name: name not in _OF_A_PERSON, "leave --teleop out")
        RecordingSession(
            out=out,
            robot="sim",
            teleop=teleop,
            episodes=num,
            steps=horizon or _PERSONS_HORIZON,
            robot_args=[f"seed={seed}", *(["view=true"] if view else [])],
            teleop_args=teleop_arg or [],
            env=env,
            append=append,
            overwrite=overwrite,
            as_json=json_,
        ).run()
        return
    if teleop_arg or append or view:
        raise UserError(
            "--teleop-arg, --append and --view need --teleop: name a device by --teleop DEVICE"
        )
    if agent is not None:
        _refuse(ctx, lambda name: name in _OF_AN_EXPERT, "leave --agent out")
        plan = _plan_of_policy(agent, env, env_kwargs)
    else:
        plan = _plan_of_expert(str(env), quality, human_like, rewards, env_kwargs)
        plan = replace(plan, noise=noise, label=label.value)
        plan = replace(plan, keep_failures=keep_failures or plan.keep_failures)
    plan = replace(
        plan,
        seed=seed,
        horizon=horizon or plan.horizon,
        hold_steps=hold,
        signals=tuple(signals or ()),
    )
    unit, noun = ("demo", "demonstration") if agent is None else ("episode", "episode")
    recorded = 0
    with Progress(num, unit, f"collect {plan.env_meta['env_name']}", quiet=quiet) as bar:

        def advance(report: CollectionReport) -> None:
            nonlocal recorded
            recorded = report.demos
            rate = report.success_rate
            words = "" if rate is None else f"{100 * rate:.1f} % of the attempts succeed"
            bar.reach(report.demos, words=words)

        try:
            with opened(on, name="imitate-collect") as backend:
                report = collect(
                    out,
                    plan,
                    num=num,
                    workers=number_of_workers(workers, backend, num, 1),
                    overwrite=overwrite,
                    resume=resume,
                    on_demo=advance,
                    step_timeout_s=step_timeout_s,
                    shard_demos=shard_demos,
                    backend=backend,
                )
        except KeyboardInterrupt:
            bar.close()
            typer.echo(
                f"stopped after {recorded} of {num} {noun}s; the same command with --resume continues {out}"
            )
            raise typer.Exit(INTERRUPTED) from None
    typer.echo(_as_json(report) if json_ else _as_text(report, noun))
    if report.lost:
        raise typer.Exit(FAILED)


def _plan_of_policy(agent: Path, env: str | None, env_kwargs: str | None) -> Plan:
    """Return the plan for recording a policy's episodes in ``env``, or if it is None in the training environment."""
    from imitate.evaluate.job import subject_of  # imports torch

    subject = subject_of(agent)
    if env is None and not subject.env_meta:
        raise UserError(f"{agent}: the checkpoint names no environment: name one by --env")
    meta = subject.env_meta if env is None else named_env(env, subject.env_meta)
    return Plan(
        env_meta=laid_over(meta, {"env_kwargs": json_object("--env-kwargs", env_kwargs or "{}")}),
        horizon=subject.horizon,
        keep_failures=True,
        agent=str(subject.file.resolve()),
        agent_sha256=subject.sha256,
    )


def _plan_of_expert(
    env: str, quality: Quality, human_like: bool, rewards: Rewards, env_kwargs: str | None
) -> Plan:
    """Return the plan for recording a scripted expert's demonstrations."""
    expert = find_expert(env)
    if human_like and quality is Quality.mixed:
        raise UserError(
            "--human-like changes the expert's motion, but --quality mixed uses other demonstrators: leave one of "
            "the two out"
        )
    if (human_like or quality is Quality.mixed) and not expert.acts_as_person:
        option = "--human-like" if human_like else "--quality mixed"
        raise UserError(
            f"{option} works only in robosuite's tasks, but --env is {env}: leave {option} out"
        )
    return Plan(
        env_meta={
            **named_env(env),
            "env_kwargs": _env_kwargs(env, expert, rewards, env_kwargs),
        },
        qualities=QUALITIES if quality is Quality.mixed else QUALITIES[:1],
        keep_failures=quality is Quality.mixed,
        habits=Habits() if human_like else None,
    )


def _env_kwargs(
    env: str, expert: ExpertKind, rewards: Rewards, given: str | None
) -> dict[str, Any]:
    """Return the environment's arguments: the expert's, updated by ``--rewards`` and then by the JSON in ``given``."""
    kwargs = dict(expert.env_kwargs)
    if rewards is Rewards.dense:
        if expert.dense_kwargs is None:
            raise UserError(f"--rewards dense: {env} has no shaped rewards: leave the option out")
        kwargs.update(expert.dense_kwargs)
    return {**kwargs, **json_object("--env-kwargs", given or "{}")}


def _refuse(ctx: typer.Context, is_refused: Callable[[str], bool], otherwise: str) -> None:
    """Raise UserError if an option was given that applies only to scripted experts.

    Args:
        ctx: context of the running command.
        is_refused: returns True for the parameter name of such an option.
        otherwise: advice for a user who wants to keep the option.
    """
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and is_refused(option.name or ""):
            raise UserError(
                f"{option.opts[0]} is for scripted experts: leave it out, or {otherwise}"
            )


def _as_json(report: CollectionReport) -> str:
    return json.dumps(
        {
            **asdict(report),
            "success_rate": report.success_rate,
            "mean_steps": report.mean_steps,
            "demos_per_min": _per_minute(report),
        }
    )


def _as_text(report: CollectionReport, noun: str) -> str:
    levels = ", ".join(f"{level} {count}" for level, count in report.quality.items())
    rate = report.success_rate
    solved, tries = f"{report.solved} solve the task", f"{report.solved}/{report.attempts}"
    lines = [
        f"{report.path}: {counted(report.demos, noun)} ({levels}), "
        f"{'success unknown' if rate is None else solved}",
        *([] if rate is None else [f"  attempts solved  {tries} ({100 * rate:.1f} %)"]),
        f"  steps            {report.steps}, {report.mean_steps:.1f} per {noun}",
        f"  size             {report.size_mb:.1f} MB",
        f"  time             {report.seconds:.0f} s, {_per_minute(report):.0f} {noun}s/min",
    ]
    if report.files > 1:
        lines.insert(1, f"  files            {report.files}")
    if report.resumed:
        lines.insert(1, f"  resumed          {report.resumed} of them by an earlier command")
    lines += [f"  problem          {problem}" for problem in report.problems]
    lines += [f"  lost             {episode}: {reason}" for episode, reason in report.lost.items()]
    return "\n".join(lines)


def _per_minute(report: CollectionReport) -> float:
    """Return the demonstrations per minute that this command recorded, without earlier ones in a resumed file."""
    recorded = report.demos - report.resumed
    return 60.0 * recorded / report.seconds if report.seconds else 0.0
