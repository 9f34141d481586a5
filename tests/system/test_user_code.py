"""The place of an error in code of a user; the command line prints it in place of a traceback."""

import importlib
import re
from pathlib import Path

from imitate.system.user_code import error_words, place_in_user_code
from tests.cli.conftest import Caller

RAISES = """from json import loads

def reward(state):
    return loads(state)
"""


def caught(call, *args):
    try:
        call(*args)
    except Exception as error:
        return error


def test_the_innermost_line_outside_of_libraries_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_reward_code.py").write_text(RAISES)
    error = caught(importlib.import_module("my_reward_code").reward, "{")
    assert place_in_user_code(error) == "my_reward_code.py, line 4"
    assert re.fullmatch(
        r"JSONDecodeError: Expecting .*; my_reward_code.py, line 4", error_words(error)
    )
    wrapped = ValueError("in another words\nand more")
    wrapped.__cause__ = error
    assert error_words(wrapped) == "ValueError: in another words; my_reward_code.py, line 4"
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # the frames of the library alone
    assert place_in_user_code(error) == ""


def test_a_command_prints_the_place_and_keeps_the_traceback(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("no distance")

    monkeypatch.setattr("imitate.checks.env.check_env", broken)
    (line,) = Caller()("check-env Pendulum-v1", code=1).stderr.splitlines()
    found = re.fullmatch(
        r"error: ZeroDivisionError: no distance; \S*test_user_code.py, line \d+; traceback: (.+)",
        line,
    )
    log = Path(found[1])
    assert "in broken" in log.read_text() and "Traceback" in log.read_text()
    log.unlink()
