"""Options that several commands share, such as ``--trust`` and ``--on``; lists given as several words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from imitate.errors import UserError, printable
from imitate.policy.renaming import Rename, rename_words

if TYPE_CHECKING:
    from imitate.crew.backend import Backend


FAILED = 1
"""Exit code if something failed, was stopped, was lost or was found; each command's help explains its meaning."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
COMMANDS = frozenset(
    {
        "train",
        "sweep",
        "collect",
        "eval",
        "dagger",
        "check-algo",
        "check-env",
        "check-deploy",
        "convert-checkpoint",
        "diagnose",
        "export",
        "info",
        "serve",
        "record",
        "replay",
        "run",
        "compare",
        "dataset playback",
        "dataset render",
        "dataset convert",
        "dataset actions",
    }
)
"""Commands that may load an environment or a network named in a file, and so take ``--trust``."""


def with_trust(command: Any, path: str) -> Any:
    """Add ``--trust`` to a command or a group's commands if they are among :data:`COMMANDS`.

    Args:
        command: click's command; changed in place.
        path: its name, preceded by the name of its group.
    """
    for name, inner in getattr(command, "commands", {}).items():
        with_trust(inner, f"{path} {name}")
    if path in COMMANDS:
        for parameter in command.params:
            if parameter.name == "env":
                parameter.callback = _trust_env
        command.params.append(_option())
    return command


@cache
def _option() -> Any:
    """Return the click option ``--trust``, made by a dummy command."""
    holder = typer.Typer(add_completion=False)

    @holder.command()
    def only(
        trusted: Annotated[
            list[str] | None,
            typer.Option(
                "--trust",
                metavar="NAME",
                expose_value=False,
                is_eager=True,
                callback=_trust,
                help="Allow files to load this module, robot, device, function or path; may be repeated. See "
                "docs/environments.md.",
            ),
        ] = None,
    ) -> None: ...

    command: Any = typer.main.get_command(holder)
    return next(parameter for parameter in command.params if parameter.name == "trusted")


def _trust(modules: list[str] | None) -> None:
    if not modules:
        return
    from imitate.system.trust import trust

    trust(*modules)


def _trust_env(ctx: Any, parameter: Any, given: Any) -> Any:
    """Trust the modules that ``--env`` names, because the user typed them."""
    for env in [given] if isinstance(given, str) else given or ():
        if ":" in env:
            from imitate.system.trust import trust_env

            trust_env(env)
    return given


NAMES = "NAME,..."
"""Metavar of options whose value is a list of names."""


def as_lists(command: Any, words: Sequence[str]) -> list[str]:
    """Join lists that were typed as several words: ``--cameras a b`` becomes ``--cameras a,b``.

    A word after a list option, or after an option that may be repeated, becomes a further value of the option if the
    command takes fewer arguments than there are words, or if the option takes KEY=VALUE and the word has this form.

    Args:
        command: click's command.
        words: words after its name.
    """
    options = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    arguments = [one.nargs for one in command.params if one.param_type_name == "argument"]
    groups: list[list[str]] = [
        []
    ]  # each group is an option and the words after it; the first has only words
    for word in words:
        if groups[-1][:1] != ["--"] and len(word) > 1 and word[0] == "-" and not word[1].isdigit():
            groups.append([])
        groups[-1].append(word)
    heads = [_own_words(group, options) for group in groups]
    excess = sum(map(len, groups)) - sum(heads) - len(arguments)
    result: list[str] = []
    for group, own in zip(groups, heads, strict=True):
        head, lone = group[:own], list[str]()
        name = group[0].partition("=")[0] if group else ""
        option: Any = options.get(name)
        for word in group[own:]:
            if option is not None and "=" in (option.metavar or ""):
                taken = option.multiple and "=" in word
            else:
                taken = _is_list(option) and excess > 0 and -1 not in arguments
            excess -= taken
            if not taken:
                lone.append(word)
            elif option.multiple:
                head += [name, word]
            else:
                head[-1] += f",{word}"
        result += head + lone
    return result


def _own_words(group: Sequence[str], options: Mapping[str, Any]) -> int:
    """Return how many words at the beginning of a group are the option and its value."""
    if not group or not group[0].startswith("-") or group[0] == "--":
        return int(group[:1] == ["--"])
    option = options.get(group[0].partition("=")[0])
    valued = "=" not in group[0] and not (option is not None and option.is_flag)
    return min(1 + valued, len(group))


def _is_list(option: Any) -> bool:
    return option is not None and (option.multiple or option.metavar == NAMES)


def with_lists(command: Any) -> Any:
    """Make a command, or all commands of a group, accept lists as several words; see :func:`as_lists`."""
    for inner in getattr(command, "commands", {}).values():
        with_lists(inner)
    if not hasattr(command, "commands"):
        parse = command.parse_args
        command.parse_args = lambda context, words: parse(context, as_lists(command, words))
    return command


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress, only the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume an interrupted run with the same options.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Number of processes; default: 1, or on a cluster as many as fit.",
    ),
]
StepTimeout = Annotated[
    float,
    typer.Option(
        "--step-timeout-s",
        min=0.001,
        help="Seconds after which a simulator in a worker process counts as hung: per call, and five times as long "
        "for making the simulator. The worker is replaced and the call repeated once.",
    ),
]

FilterKey = Annotated[
    str | None, typer.Option("--filter-key", help="Use only the demos of this filter key.")
]

CONFIG = typer.Option(
    "--config",
    "-c",
    help="JSON file, or the name of a bundled configuration, such as robosuite/lift/bc.",
)
Dataset = Annotated[
    Path | None,
    typer.Option(
        "--dataset",
        "-d",
        help="Demonstrations that replace train.data: an HDF5 file, a folder of shards, a LeRobot folder, or the URL "
        "of one of these.",
    ),
]
SetKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the configuration, as in train.batch_size=256; may be repeated.",
    ),
]
OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", "-o", help="Folder in which the run's folder is made (train.output_dir)."
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", min=1, help="Number of epochs to train (train.num_epochs)."),
]
TrainDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1 or mps (train.device); default: a GPU if torch sees one.",
    ),
]

ROBOT = typer.Option(
    "--robot",
    help="Robot: sim (the environment of --env, or else of the checkpoint or demonstration file, simulated in real "
    "time), the name of an installed driver, lerobot:TYPE, module:Class, or file.py:Class.",
)
RateHz = Annotated[
    float | None,
    typer.Option(
        "--rate-hz", min=0.01, help="Control rate in Hz; default: the rate of the demonstrations."
    ),
]
AnyRate = Annotated[
    bool,
    typer.Option(
        "--any-rate",
        help="Allow a --rate-hz that differs from the rate of the demonstrations or of the robot.",
    ),
]
TeleopArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--teleop-arg",
        metavar="KEY=VALUE",
        help="Argument for the device, such as scale=0.5; may be repeated.",
    ),
]
TakeOverArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--take-over-arg",
        metavar="KEY=VALUE",
        help="Argument for the device, such as scale=0.5; may be repeated.",
    ),
]
Lang = Annotated[
    str | None,
    typer.Option("--lang", help="Instruction for a policy that is conditioned on language."),
]
ActingDevice = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda; default: cuda if there is a GPU.")
]
ActingPrecision = Annotated[
    Literal["fp32", "bf16", "int8"],
    typer.Option(
        "--precision",
        help="Precision of a policy's large linear layers on a CPU. bf16 and int8 are faster "
        "than fp32 but change actions slightly.",
    ),
]
RenameObs = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="NEW=OLD",
        help="Give the observation that the environment or robot calls NEW to the policy as its observation OLD, as "
        "in agent_pos=state; may be repeated.",
    ),
]


def json_object(option: str, text: str) -> dict[str, Any]:
    """Return the value of an option that is a JSON object.

    Raises:
        UserError: the text is not JSON, or its value is not an object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(
            f"{option}: {text} is not JSON ({error}): give an object such as '{{\"max_steps\": 200}}'"
        ) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{option}: {text}: expected a JSON object, such as '{{\"max_steps\": 200}}'"
        )
    return value


def save(report: Mapping[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Print a report as JSON if asked to, and write it to a JSON file if one is given."""
    from imitate.system.run_folder import to_json, write_text

    if as_json:
        typer.echo(to_json(report, indent=2))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, to_json(report, indent=2) + "\n")


def tell_saved_names(path: Path, saved: Rename | None) -> None:
    """Print, to stderr, the names of observations that are saved in a checkpoint."""
    if saved:
        typer.echo(printable(f"{path}: takes {rename_words(saved)}, as saved in it"), err=True)


ON_HELP = (
    "Where workers run: local (processes of this machine), ray (the Ray cluster of RAY_ADDRESS, or the one that runs "
    "on this machine, or else a private one on this machine), or ray:HOST:PORT (the cluster at that address)."
)
On = Annotated[str, typer.Option("--on", metavar="PLACE", help=ON_HELP)]


@contextmanager
def opened(on: str, *, gpus: float = 0.0, name: str) -> Iterator[Backend[Any] | None]:
    """Open the back end of ``--on`` and yield it, or None for processes on this machine.

    Args:
        on: value of the option.
        gpus: GPUs per worker on a cluster.
        name: name that the worker processes get.
    """
    from imitate.crew.places import open_backend
    from imitate.system.processes import LOCAL

    if on == LOCAL:
        yield None
        return
    with open_backend(on, gpus=gpus, name=name) as backend:
        yield backend


def number_of_workers(
    wanted: int | None, backend: Backend[Any] | None, items: int, here: int
) -> int:
    """Return the number of workers to start.

    Args:
        wanted: value of ``--workers``, or None if it was omitted.
        backend: back end on which they run, or None for processes on this machine.
        items: number of work items, an upper limit of useful workers.
        here: default for processes on this machine.
    """
    if wanted is not None:
        return wanted
    return here if backend is None else max(1, min(backend.places, items))
