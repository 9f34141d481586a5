"""A terminal in which tests type the commands of the documentation: ``imitate`` runs in this process."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from typing import Self

from typer.testing import CliRunner

from imitate.cli.main import app

WORDS = "imitate() { printf '%s\\0' imitate \"$@\"; }; "
"""Makes bash print the words of a command, after it has read quotes, variables and patterns."""
RUN = re.compile(r"(?P<name>runs/\w+)/(<time>|\d{14})")
ADDRESS = re.compile(r"\b(wss?)://[\w.]+:8000")
TIMEOUT_S = 600


class CommandError(Exception):
    """A command of a page did not succeed."""


class Terminal:
    """Runs lines of a shell in the working folder.

    A line that begins with ``imitate`` runs in this process, without a new interpreter; others run in bash.
    A server is started in the background; it ends when another one is started, or with the context.

    Args:
        folder: the working folder.
        program: the words that begin a command in a process of its own.
    """

    def __init__(self, folder: Path, program: str = f"{sys.executable} -m imitate") -> None:
        self.folder, self.program = folder, program
        self._server: subprocess.Popen[str] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_server()

    def run(self, line: str, may_exit_with: Container[int] = ()) -> None:
        """Run a line.

        Args:
            line: of a page.
            may_exit_with: exit codes that are not a failure, beside 0.

        Raises:
            CommandError: it failed.
        """
        line = RUN.sub(self._newest, line)
        line = ADDRESS.sub(lambda match: f"{match[1]}://127.0.0.1:{self._port}", line)
        if line.startswith("imitate serve "):
            self._serve(line)
        elif line.startswith("imitate "):
            words = self._bash(WORDS + line).split("\0")[1:-1]
            done = CliRunner().invoke(app, words)
            if done.exit_code and done.exit_code not in may_exit_with:
                raise CommandError(
                    f"exit code {done.exit_code} of: {line}\n{done.output}"
                ) from done.exception
        else:
            self._bash(line)

    def _newest(self, match: re.Match[str]) -> str:
        """The newest run of a name, where a page has the time at which the reader's began."""
        runs = sorted((self.folder / match["name"]).glob("[0-9]*"))
        return str(runs[-1].relative_to(self.folder)) if runs else match[0]

    def _serve(self, line: str) -> None:
        self._end_server()
        command = line.partition(" #")[0].removeprefix("imitate ")
        self._server = subprocess.Popen(
            ["bash", "-c", f"exec {shlex.quote(str(self.program))} {command} --port 0 --json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        told = self._server.stdout.readline()
        if not told:
            raise CommandError(f"exit code {self._server.wait()} of: {line}")
        self._port = int(json.loads(told)["url"].rpartition(":")[2])

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.communicate()
            self._server = None

    def _bash(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise CommandError(f"exit code {done.returncode} of: {line}\n{done.stdout}")
        return done.stdout
