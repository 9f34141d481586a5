"""Command lines that are called in this process."""

import json
import shlex

from typer.testing import CliRunner

from imitate.cli.main import app


class Caller:
    """Calls command lines in the working folder, and checks their exit codes."""

    def __call__(self, line, *words, code=0):
        """Run a command line and return the result, with ``stdout``, ``stderr`` and ``output`` of both.

        Args:
            line: without ``imitate``, as a shell reads it.
            *words: more of them, such as paths, which are not split.
            code: the exit code that it has to have, or None if any will do.
        """
        done = CliRunner().invoke(app, [*shlex.split(line), *map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert code in (done.exit_code, None), done.output
        return done

    def json(self, line, *words, code=0):
        """Return its standard output with ``--json``: strict JSON alone."""
        return json.loads(self(f"{line} --json", *words, code=code).stdout, parse_constant=refuse)


def refuse(constant):
    """NaN and infinite numbers."""
    raise ValueError(f"{constant} is no JSON")


call = Caller()
