"""The ``imitate`` program, whose commands are imported only when they are used.

Exit codes: 0 done, 1 a fault of the program (with its traceback), 2 invalid input (one line with the remedy),
130 interrupted, 129 if the terminal was closed.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from imitate.cli.help_texts import complete, examples
from imitate.cli.mistakes import UsageError, as_typed, mistakes, of_another_name
from imitate.cli.options import FAILED, INTERRUPTED, with_lists, with_trust
from imitate.errors import UserError, nearest, offering, printable
from imitate.system.missing import no_such
from imitate.system.user_code import error_words, place_in_user_code
from imitate.system.version import __version__

USER_ERROR = 2
_CIRCLE = "Symlink loop from"
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory")
"""Words in torch's out-of-memory errors, for the machine and for a GPU."""
_NEEDED = {
    "torch": (
        "torch",
        " (a bundle of imitate export, and a server of imitate serve, work without it)",
    ),
    "h5py": ("h5py", " (for files of demonstrations)"),
    "PIL": ("pillow", " (for images in files of demonstrations)"),
}
"""Packages that a robot's computer may lack: module name, then package name and purpose."""
_ARGS = "imitate.command_line"
HUNG_UP = 129
QUIT = 131
TERMINATED = 143


HELP = """From robot demonstrations to a deployed policy.

The whole way, with a ready configuration:

\b
  imitate collect --env Lift --num 200 --workers 2 --out datasets/lift/scripted.hdf5
  imitate train --config robosuite/lift/bc
  imitate eval --agent runs/lift_bc/<time>/checkpoints/best.pth --episodes 50

`imitate COMMAND --help` explains one command, with examples.
"""


@dataclass(frozen=True)
class Verb:
    """Module, function and summary of a command.

    Args:
        module: module of ``imitate.cli``.
        attribute: its function, or its ``typer.Typer`` if it has sub-commands.
        summary: the line that ``imitate --help`` shows.
        examples: command lines shown at the end of its help.
    """

    module: str
    attribute: str
    summary: str
    examples: tuple[str, ...]


VERBS = {
    "collect": Verb(
        "collect",
        "command",
        "Record demonstrations of a scripted expert.",
        (
            "imitate collect --env Lift --num 200 --workers 2 --out datasets/lift/scripted.hdf5",
            "imitate collect --env Lift --num 100000 --shard-demos 1000 --out demos --on ray --resume",
        ),
    ),
    "train": Verb(
        "train",
        "command",
        "Train a policy on demonstrations.",
        (
            "imitate train --config robosuite/lift/bc",
            "imitate train --config bc/bc_rnn_gmm --dataset my.hdf5 --set train.batch_size=64",
        ),
    ),
    "dagger": Verb(
        "dagger",
        "command",
        "Interactive imitation learning: DAgger, HG-DAgger.",
        (
            "imitate dagger --config robosuite/lift/bc --dataset demos.hdf5 --first 5 --out runs/dagger",
            "imitate dagger --config robosuite/lift/bc --dataset demos.hdf5 --take-over my_robot:hand --out runs/hg",
        ),
    ),
    "sweep": Verb(
        "sweep",
        "sweep",
        "Train once for each combination of values.",
        (
            "imitate sweep robosuite/lift/bc --grid train.seed=[1,2,3] --workers 2",
            "imitate sweep --config my_sweep.json --epochs 100 --statistic iqm",
            "imitate sweep my_sweep.json --stop-early asha --metric success_rate --epochs 90",
            "imitate sweep my_sweep.json --dry-run",
        ),
    ),
    "plot": Verb(
        "sweep",
        "plot",
        "Draw curves of several runs, over seeds.",
        (
            "imitate plot runs/lift_bc runs/lift_flow_policy --over cpu --out curves.png",
            "imitate plot runs/my_sweep --out curves.pdf --table results.tex --statistic iqm",
        ),
    ),
    "eval": Verb(
        "eval",
        "command",
        "Measure success rates of checkpoints, or compare two.",
        (
            "imitate eval --agent best.pth --episodes 50 --workers 2 --video episodes.mp4",
            "imitate eval --agent first.pth --agent second.pth --episodes 100",
            "imitate eval --agent runs/*/checkpoints/best.pth --env all --on ray --table table.json --resume",
        ),
    ),
    "record": Verb(
        "robot.record",
        "command",
        "Record demonstrations by teleoperation.",
        (
            "imitate record demos.hdf5 --robot my_arm --teleop keyboard --rate-hz 10 --episodes 50",
            "imitate record lift.hdf5 --robot sim --env Lift --teleop expert:Lift --episodes 20",
        ),
    ),
    "replay": Verb(
        "robot.replay",
        "command",
        "Send the actions of a demonstration to a robot.",
        (
            "imitate replay demos.hdf5 --robot my_robots:Arm --demo demo_3 --slow 0.1",
            "imitate replay lift.hdf5 --robot sim --json",
        ),
    ),
    "run": Verb(
        "robot.run",
        "command",
        "Run a policy on a robot.",
        (
            "imitate run best.pth --robot sim --episodes 10",
            "imitate run ws://gpu-box:8000 --robot my_robots:Arm --limits arm.json --slow 0.1",
        ),
    ),
    "compare": Verb(
        "robot.compare",
        "command",
        "Compare two policies on a robot.",
        (
            "imitate compare first.pth second.pth --robot my_robots:Arm --limits arm.json --max-pairs 30",
            "imitate compare first.pth second.pth --robot sim --env Lift --out lift.jsonl --json",
            "imitate compare --out lift.jsonl --report",
        ),
    ),
    "serve": Verb(
        "robot.serve",
        "command",
        "Serve a policy to clients over the network.",
        (
            "imitate serve best.pth",
            "imitate serve best.pth --host 0.0.0.0 --token-file token.txt --tls-cert cert.pem",
        ),
    ),
    "export": Verb(
        "export",
        "command",
        "Write a policy as a bundle that runs without torch.",
        (
            "imitate export best.pth -o lift.zip",
            "imitate export runs/lift_bc/<time> --to onnx --json",
        ),
    ),
    "check-deploy": Verb(
        "robot.check_deploy",
        "command",
        "Check a policy on recorded demonstrations.",
        (
            "imitate check-deploy best.pth recorded_on_the_robot.hdf5",
            "imitate check-deploy ws://gpu-box:8000 demos.hdf5 --training training.hdf5 --json",
        ),
    ),
    "check-env": Verb(
        "checks",
        "of_environment",
        "Check an environment for online RL and evaluation.",
        ("imitate check-env Pendulum-v1", "imitate check-env datasets/lift/scripted.hdf5"),
    ),
    "check-algo": Verb(
        "checks",
        "of_configuration",
        "Check environment, policy and trainer in a small run.",
        (
            "imitate check-algo sac/sac_pendulum",
            "imitate check-algo bc/bc_rnn_gmm --dataset demos.hdf5 --json",
        ),
    ),
    "diagnose": Verb(
        "diagnose",
        "command",
        "Find out why a policy does not succeed.",
        (
            "imitate diagnose runs/lift_bc",
            "imitate diagnose best.pth --recording failed.hdf5 --json",
        ),
    ),
    "cluster": Verb(
        "cluster",
        "command",
        "Show the nodes of a cluster and their versions.",
        ("imitate cluster", "imitate cluster --on ray:10.0.0.1:6379 --json"),
    ),
    "info": Verb(
        "info",
        "command",
        "Describe a dataset, a checkpoint, a bundle or a run.",
        ("imitate info datasets/lift/scripted.hdf5", "imitate info runs/lift_bc/<time> --json"),
    ),
    "dataset": Verb(
        "dataset.dataset",
        "app",
        "Examine, edit, convert and play back demonstrations.",
        (
            "imitate dataset doctor datasets/lift/scripted.hdf5",
            "imitate dataset playback datasets/lift/scripted.hdf5 --first 5 --video demos.mp4",
        ),
    ),
    "convert-checkpoint": Verb(
        "convert_checkpoint",
        "command",
        "Convert checkpoints from and to robomimic and LeRobot.",
        (
            "imitate convert-checkpoint best.pth for_robomimic.pth --to robomimic-0.5",
            "imitate convert-checkpoint robomimic.pth ours.pth --to imitate",
            "imitate convert-checkpoint runs/act/<time> FOLDER --to lerobot",
        ),
    ),
    "config": Verb(
        "config",
        "app",
        "Write, show, check and explain configurations.",
        (
            "imitate config init own.hdf5 --out my.json",
            "imitate config show robosuite/lift/bc --set train.batch_size=64",
        ),
    ),
}


class _LazyVerb(TyperCommand):
    """Placeholder in the list of commands; imports the command's module when it is called."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name=name, help=verb.summary, short_help=verb.summary)
        self._name, self._verb = name, verb

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Import the command and return its click context."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import the command and return it."""
        target = getattr(import_module(f"imitate.cli.{self._verb.module}"), self._verb.attribute)
        return _command(target, self._name, self._verb.examples)


@cache
def _command(target: Any, name: str, lines: tuple[str, ...]) -> Any:
    """Return the click command of a function or group, made once per process."""
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name, epilog=examples(*lines))
        group: Any = typer.main.get_group(holder)
        command = group.commands[name]
    else:
        holder.command(name, epilog=examples(*lines))(target)
        command = typer.main.get_command(holder)
    complete(command, name)
    return with_lists(with_trust(command, name))


class _PlainOutput:
    """Standard output in which names from files cannot move the cursor or change colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the printable form of a text."""
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _as_of_dataset(name: str) -> str:
    """Return advice if ``name`` is a command of `imitate dataset`, typed without the word dataset; otherwise ''."""
    from imitate.cli.dataset.dataset import app as dataset

    names = {
        command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        for command in dataset.registered_commands
    }
    return f"it is 'imitate dataset {name}'" if name in names else ""


class _Verbs(TyperGroup):
    """The group of all commands; prints a :class:`UserError` as one line and exits with code 2."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Return a click context whose ``meta`` contains the command line."""
        line = list(args)
        try:
            context = super().make_context(info_name, args, parent=parent, **extra)
        except UsageError as error:
            _refuse(error, line)
        context.meta[_ARGS] = line
        return context

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order in which a project uses them."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a placeholder for the command of that name, or None if there is none."""
        return _LazyVerb(cmd_name, VERBS[cmd_name]) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, and the other arguments."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            hint = of_another_name(args) or _as_of_dataset(args[0]) or nearest(args[0], VERBS)
            raise UserError(f"there is no command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print known errors in one line and exit with their code."""
        try:
            with redirect_stdout(cast(TextIO, _PlainOutput(sys.stdout))):
                with offering(_options_of(ctx.meta[_ARGS])):
                    answer = super().invoke(ctx)
                sys.stdout.flush()
                return answer
        except (UserError, UsageError) as error:
            _refuse(error, ctx.meta[_ARGS])
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise  # click ends quietly if the reader of a pipe has exited
            with suppress(OSError):
                typer.echo(f"error: {_of_a_file(error)}", err=True)
            _drop_output()
            raise typer.Exit(USER_ERROR) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "imitate"):
                raise
            name, why = _NEEDED.get(package, (package, ""))
            cure = f"pip install {name}{why}"
            typer.echo(f"error: the package '{name}' is not installed: {cure}", err=True)
            raise typer.Exit(USER_ERROR) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            code = _told(error)
            if code is None:
                raise
            raise typer.Exit(code) from None
        except KeyboardInterrupt as error:
            with suppress(OSError):  # the terminal may have been closed
                typer.echo(" ".join(["interrupted", *map(str, error.args)]), err=True)
            raise typer.Exit(_code_of(error)) from None


def _options_of(args: Sequence[str]) -> set[str]:
    """Return the option names of the command that a command line calls."""
    command: Any = None
    for word in args:
        below = VERBS if command is None else getattr(command, "commands", {})
        if word not in below:
            break
        command = _LazyVerb(word, VERBS[word]).load() if command is None else below[word]
    return {name for one in getattr(command, "params", ()) for name in one.opts}


def _refuse(error: Any, args: Sequence[str]) -> NoReturn:
    """Print a line for each mistake of the user, and end with exit code 2."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    for line in str(error).splitlines() if isinstance(error, UserError) else mistakes(error, args):
        typer.echo(f"error: {printable(as_typed(line, args))}", err=True)
    raise typer.Exit(USER_ERROR) from None


def _told(error: Exception) -> int | None:
    """Print an error that has a known cause in one line; return its exit code, or None for a fault of the program."""
    robots = sys.modules.get("imitate.deploy.robot.robot")  # None if no robot is used
    if robots is not None and isinstance(error, robots.RobotError):
        typer.echo(f"error: {printable(str(error))}", err=True)
        return FAILED
    if str(error).startswith(_CIRCLE):  # the message is pathlib's
        typer.echo(
            f"error: {printable(str(error))}: symbolic links in this path lead back to each other",
            err=True,
        )
        return USER_ERROR
    if isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
        details = (str(error).splitlines() or [type(error).__name__])[0]
        typer.echo(
            f"error: there is not enough memory ({printable(details[:300])}): choose smaller networks, batches or "
            "files, or a larger machine",
            err=True,
        )
        return USER_ERROR
    if place_in_user_code(error):
        typer.echo(printable(f"error: {error_words(error)}; traceback: {_kept(error)}"), err=True)
        return FAILED
    return None


def _kept(error: Exception) -> str:
    """Write the traceback of an error to a new temporary file; return the file's path."""
    with tempfile.NamedTemporaryFile("w", prefix="imitate-", suffix=".log", delete=False) as log:
        log.writelines(traceback.format_exception(error))
    return log.name


def _of_a_file(error: OSError) -> str:
    """Describe an OSError in reading or writing a file or standard output, with the file's name if known."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return printable(no_such(os.fsdecode(error.filename), "file or folder"))
    named = "a file, or the output" if error.filename is None else printable(str(error.filename))
    reason = error.strerror or str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{named}: cannot be read or written ({printable(str(reason))}): make room, change its permissions, or name "
        "another place"
    )


def _drop_output() -> None:
    """Discard the remaining standard output; otherwise Python reports a full disk when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code for an interrupting signal: 128 plus its number, as shells do."""
    words = " ".join(map(str, interrupt.args))
    codes = {"SIGTERM": TERMINATED, "SIGQUIT": QUIT}
    for name, code in codes.items():
        if name in words:
            return code
    return HUNG_UP if words else INTERRUPTED


app = typer.Typer(
    name="imitate",
    cls=_Verbs,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"imitate {__version__}")
        raise typer.Exit()


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Handle the options that are given before the command's name."""


def main() -> None:
    """Run the command line; entry point of the program ``imitate``."""
    _fill_descriptors()
    _keep_out_working_folder()
    hangup = getattr(signal, "SIGHUP", None)  # Windows has no such signal
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
        signal.signal(hangup, _hang_up)
    app(prog_name="imitate")


def _fill_descriptors() -> None:
    """Connect closed standard streams to /dev/null; otherwise the next opened file would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # opens as the lowest free descriptor, `number`
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _keep_out_working_folder() -> None:
    """Keep child Python processes from importing modules in the working folder, unless this process does so itself.

    ``python -c`` puts the working folder first in sys.path: workers and the trainings of a sweep would import, for
    example, a ``signal.py`` from a downloaded folder. Python 3.10 ignores PYTHONSAFEPATH.
    """
    with suppress(OSError):
        if any(
            os.path.samefile(place or ".", ".") for place in sys.path if os.path.isdir(place or ".")
        ):
            return
    os.environ.setdefault("PYTHONSAFEPATH", "1")


def _hang_up(number: int, frame: Any) -> None:
    raise KeyboardInterrupt("by SIGHUP: the terminal was closed")


if __name__ == "__main__":
    main()
