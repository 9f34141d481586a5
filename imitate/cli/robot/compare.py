"""``imitate compare``: compare two policies on a robot, and print the report on a comparison."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.options import (
    FAILED,
    ROBOT,
    ActingDevice,
    ActingPrecision,
    AnyRate,
    AsJson,
    Lang,
    RateHz,
    RenameObs,
)
from imitate.cli.reports.layout import in_one_line
from imitate.cli.robot.policies import (
    FoundPolicy,
    InBackground,
    Join,
    PolicyOpener,
    ResizeImages,
    Timeout,
    TlsCa,
    TokenFile,
    UnlikeTraining,
    look_before_motion,
    rate_of,
)
from imitate.cli.robot.robots import AnyLimits, Limits, RobotArgs, RobotEnv, SafetyArgs, Slow
from imitate.data.download.download import sha256_of
from imitate.deploy.comparison.comparison import ComparisonOutcome
from imitate.deploy.comparison.trial_file import POLICIES
from imitate.errors import UserError
from imitate.system.plain_files import read_json
from imitate.system.statistics import share_interval

if TYPE_CHECKING:
    from imitate.cli.robot.robots import Interrupts
    from imitate.deploy.comparison.judges import Judge
    from imitate.deploy.comparison.trial_file import TrialFile
    from imitate.deploy.robot.loop import ControlLoop
    from imitate.deploy.robot.robot import Robot


class JudgeName(str, Enum):
    """Judge who decides whether a trial succeeded."""

    auto = "auto"
    person = "person"
    robot = "robot"


def command(
    first: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            help="Checkpoint, run folder, bundle, or address of a server: ws://HOST:PORT.",
        ),
    ] = None,
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="Second policy, in the same forms as A.")
    ] = None,
    robot: Annotated[
        str | None,
        ROBOT,
    ] = None,
    robot_arg: RobotArgs = None,
    env: RobotEnv = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="File to which each trial is written as a line. If it exists, the comparison in it is resumed.",
        ),
    ] = Path("comparison.jsonl"),
    judge: Annotated[
        JudgeName,
        typer.Option(
            "--judge",
            help="Who decides whether a trial succeeded: the robot, or a person by keys; auto: the robot if it "
            "measures success and resets the scene itself, otherwise a person.",
        ),
    ] = JudgeName.auto,
    max_pairs: Annotated[
        int,
        typer.Option(
            "--max-pairs",
            min=1,
            help="Largest number of pairs, after which the comparison ends undecided. It can "
            "be raised later.",
        ),
    ] = 50,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0.0001,
            max=0.5,
            help="Largest probability that one of two equally good policies is declared better.",
        ),
    ] = 0.05,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Largest number of control steps per trial.")
    ] = 400,
    rate_hz: RateHz = None,
    any_rate: AnyRate = False,
    lang: Lang = None,
    limits: Limits = None,
    any_limits: AnyLimits = False,
    unlike_training: UnlikeTraining = False,
    slow: Slow = 1.0,
    safety: SafetyArgs = None,
    asynchronous: InBackground = False,
    join: Join = "blend",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    resize: ResizeImages = False,
    rename: RenameObs = None,
    timeout_s: Timeout = None,
    device: ActingDevice = None,
    precision: ActingPrecision = "fp32",
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Print the state of the comparison in --out; no robot is needed."
        ),
    ] = False,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal",
            help="With --report: show which policy is which before the comparison has ended. The file records that "
            "it is no longer blind.",
        ),
    ] = False,
    json_: AsJson = False,
) -> None:
    """Compare two policies on a robot, in pairs of trials from the same scene.

    A person judges without knowing which policy acts; a hidden coin toss
    decides which one is first. After each pair a sequential test says whether
    one of them is better. The same command resumes an interrupted comparison.
    The limits and stops of imitate run apply. This is not a safety function: keep
    a hand on the emergency stop.

    Exit codes: 0 done; 1 the robot was stopped before it moved; 2 invalid input.
    """
    from imitate.cli.robot.robots import released, robot_of, safety_of
    from imitate.deploy.check.first_look import check_sizes
    from imitate.deploy.comparison.trial_file import TrialFile

    if report or reveal:
        with TrialFile(out) as file:
            _show(file, reveal, json_)
        return
    if first is None or second is None or robot is None:
        raise UserError(
            "give two policies and --robot to compare them, or --report to print the state of a "
            "comparison"
        )
    settings: dict[str, Any] = {
        "robot": robot,
        "robot_arg": robot_arg or [],
        "env": env,
        "steps": steps,
        "lang": lang,
        "slow": slow,
        "alpha": alpha,
        "any_rate": any_rate,
        "any_limits": any_limits,
        "resize": resize,
        "join": join if asynchronous else None,
    }
    if rename:  # files of earlier versions lack this setting
        settings["rename"] = sorted(rename)
    if safety:
        settings["safety"] = sorted(safety)
        safety_of(robot, safety)
    if unlike_training:
        settings["unlike_training"] = True
    if precision != "fp32":
        settings["precision"] = precision
    source = PolicyOpener(
        token_file, timeout_s, device, settings["join"], tls_ca, resize, rename or (), precision
    )
    with contextlib.ExitStack() as stack:
        found = {"A": source.open(first, stack), "B": source.open(second, stack)}
        rate = rate_of(found["A"].actor, rate_hz)

        def check(body: Robot) -> None:
            for policy in found.values():
                check_sizes(body, policy.schema, resize)

        own = found["A"].env_args or found["B"].env_args
        body = robot_of(
            robot,
            robot_arg or [],
            env=env,
            own=own,
            seen={**found["B"].shapes, **found["A"].shapes},
            rate_hz=rate,
            limits=limits,
            any_limits=any_limits,
            check=check,
        )
        interrupts = stack.enter_context(released(body))
        looks = {
            letter: look_before_motion(policy, body, unlike_training)
            for letter, policy in found.items()
        }
        settings |= {"rate_hz": rate, "limits": _limits(limits), "judge": _judge(judge, body)}
        named = {
            letter: {"name": name, "sha256": _identity(name, found[letter])}
            for letter, name in (("A", first), ("B", second))
        }
        # Both policies are checked before the file is written, so that an error leaves no file behind.
        made = _made_judge(settings["judge"], body)
        stack.callback(made.close)
        actors = {letter: source.acting(found[letter], rate, stack) for letter in found}
        loops = _loops(body, actors, settings, made, interrupts, looks)
        file = stack.enter_context(TrialFile(out, named, settings))
        _compare(file, loops, made, max_pairs, json_, interrupts)


def _loops(
    body: Robot,
    actors: Mapping[str, Any],
    settings: Mapping[str, Any],
    judge: Judge,
    interrupts: Interrupts,
    looks: Mapping[str, Any],
) -> dict[str, ControlLoop]:
    from imitate.cli.robot.robots import safety_of
    from imitate.deploy.robot.loop import ControlLoop

    return {
        letter: ControlLoop(
            body,
            actor,
            settings["rate_hz"],
            safety=safety_of(settings["robot"], settings.get("safety", ())),
            teleoperator=judge.keys,
            any_rate=settings["any_rate"],
            slow=settings["slow"],
            on_step=interrupts.checked(None),
            look=looks[letter],
        )
        for letter, actor in actors.items()
    }


def _compare(
    file: TrialFile,
    loops: Mapping[str, ControlLoop],
    judge: Judge,
    max_pairs: int,
    json_: bool,
    interrupts: Interrupts,
) -> None:
    from imitate.deploy.comparison.comparison import Comparison
    from imitate.errors import RobotError

    settings = file.settings

    def say(line: str) -> None:
        typer.echo(line, err=json_)
        interrupts.check()

    comparison = Comparison(
        file,
        loops,
        judge,
        steps=settings["steps"],
        max_pairs=max_pairs,
        lang=settings["lang"],
        say=say,
    )
    try:
        finished = comparison.run()
    except RobotError as error:
        typer.echo(
            f"error: {error}; the trial was not written; resume with the same command", err=True
        )
        raise typer.Exit(FAILED) from None
    if finished and judge.blind:
        file.reveal()
    _show(file, False, json_)
    if not finished:
        typer.echo("the same command resumes the comparison", err=True)


def _show(file: TrialFile, reveal: bool, json_: bool) -> None:
    from imitate.deploy.comparison.comparison import ComparisonOutcome

    outcome = ComparisonOutcome(file)
    if reveal and not is_open(outcome):
        file.reveal()
    if not is_open(outcome):
        result = {
            "pairs": outcome.pairs,
            "differ": outcome.wins + outcome.losses,
            "e_value": outcome.e_value,
        }
        typer.echo(json.dumps(result) if json_ else "\n".join(sealed_lines(outcome)))
        return
    result = outcome.to_dict() if json_ else {}
    typer.echo(json.dumps(result, indent=2) if json_ else "\n".join(comparison_lines(outcome)))


def _judge(name: JudgeName, body: Robot) -> str:
    if name is not JudgeName.auto:
        return str(name.value)
    from imitate.deploy.robot.driver import solved
    from imitate.deploy.robot.robot import Robot

    puts_up = type(body).reset is not Robot.reset or type(body).reset_to is not Robot.reset_to
    return "robot" if puts_up and solved(body) is not None else "person"


def _made_judge(name: str, body: Robot) -> Judge:
    from imitate.deploy.comparison.judges import PersonJudge, RobotJudge

    return RobotJudge(body) if name == "robot" else PersonJudge()


def _limits(path: Path | None) -> Any:
    """Return the content of the file ``--limits``, already checked by :func:`imitate.cli.robot.robots.robot_of`."""
    return None if path is None else read_json(path.expanduser())


def _identity(name: str, found: FoundPolicy) -> str:
    """Return a SHA-256 that identifies a policy: of its file, or of a server's address, schema and known weights."""
    if found.path is not None:
        return sha256_of(found.path)
    schema = found.actor.schema
    metadata = found.actor.metadata if schema is None else schema.to_dict()
    if schema is not None and found.actor.weights:
        metadata["weights"] = found.actor.weights
    text = json.dumps([name, metadata], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def is_open(outcome: ComparisonOutcome) -> bool:
    """Return True if the report may name the policies.

    This is so if a robot judges, if the comparison has ended, or after ``--reveal``.
    """
    file = outcome.file
    return (
        file.settings["judge"] == "robot"
        or outcome.decided is not None
        or file.revealed is not None
    )


def sealed_lines(outcome: ComparisonOutcome) -> list[str]:
    """Return lines on a running comparison, without anything that distinguishes the policies."""
    differed = outcome.wins + outcome.losses
    return [
        f"{outcome.file.path}: {outcome.pairs} complete pairs, of which {differed} differ; e-value "
        f"{outcome.e_value:.3g}, {1 / outcome.alpha:.3g} decides",
        "the policies are named at the end, or by --report --reveal",
    ]


def comparison_lines(outcome: ComparisonOutcome) -> list[str]:
    """Return the lines of the whole result, with the policies' names."""
    width = max(len(_name(outcome, letter)) for letter in POLICIES)
    lines = [outcome.words, ""]
    for letter in POLICIES:
        of = outcome.of(letter)
        low, high = of.interval
        line = f"{_name(outcome, letter):{width}}  {of.successes} of {of.trials}"
        if of.trials:
            line += f" ({of.successes / of.trials:.0%}; 95 % {low:.0%} - {high:.0%})"
        if of.progress is not None:
            line += f", progress {of.progress:.1f} of 9 ({of.rated} rated)"
        if of.stopped:
            line += f", {of.stopped} stopped by the control loop"
        lines.append(line)
    paired = outcome.paired
    if paired is not None:
        lines.append(
            f"difference A - B: {paired.difference:+.0%} (95 % {paired.low:+.0%} - {paired.high:+.0%})"
        )
    low, high = share_interval(outcome.wins, outcome.losses, outcome.alpha)
    lines += [
        f"valid at any time: p {outcome.p_value:.3g}; A wins {low:.0%} - {high:.0%} of the "
        "pairs that differ",
        "the other intervals are for a fixed number of pairs: after an early end they "
        "overestimate the better policy",
    ]
    if outcome.file.revealed is not None and outcome.file.revealed < outcome.pairs:
        lines.append(f"blind for only {outcome.file.revealed} of {outcome.pairs} pairs")
    lines += _notes(outcome)
    return [in_one_line(line) for line in lines]


def _name(outcome: ComparisonOutcome, letter: str) -> str:
    policy = outcome.file.policies[letter]
    return f"{letter}: {policy['name']} ({policy['sha256'][:12]})"


def _notes(outcome: ComparisonOutcome) -> list[str]:
    """Return lines with the person's notes, stopped trials and repeated trials of each policy."""
    file, lines = outcome.file, []
    for letter in POLICIES:
        for trial in file.trials:
            words = "; ".join(filter(None, (trial.note, trial.stopped)))
            if words and file.policy(trial.pair, trial.position) == letter:
                verdict = "success" if trial.success else "failure"
                lines.append(f"{letter}, pair {trial.pair + 1}, {verdict}: {words}")
        lines += [
            f"{letter}, pair {redo.pair + 1}, redone: {redo.reason}"
            for redo in file.redos
            if file.policy(redo.pair, redo.position) == letter
        ]
    return lines
