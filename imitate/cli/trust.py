"""The option ``--trust`` of commands that make environments; modules named by ``--env`` are trusted, too."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer

COMMANDS = frozenset(
    {
        "train",
        "sweep",
        "eval",
        "dagger",
        "check-env",
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
"""Commands that may make an environment named in a file."""


def with_trust(command: Any, path: str) -> Any:
    """Add ``--trust`` to a command or a group's commands if they make environments.

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
    """Return click's option, taken from a command that has no other."""
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
                help="Module, robot, device, function or path that a file may load; "
                "repeatable. See docs/environments.md",
            ),
        ] = None,
    ) -> None: ...

    command: Any = typer.main.get_command(holder)
    return next(parameter for parameter in command.params if parameter.name == "trusted")


def _trust(modules: list[str] | None) -> None:
    if not modules:
        return
    from imitate.envs.trust import trust

    trust(*modules)


def _trust_env(ctx: Any, parameter: Any, given: Any) -> Any:
    """Trust the modules of ``--env``: one name, or several if the option may be repeated."""
    for env in [given] if isinstance(given, str) else given or ():
        if ":" in env:
            from imitate.envs.trust import trust_env

            trust_env(env)
    return given
