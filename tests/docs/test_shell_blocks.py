"""Commands of the documentation run in page order, on small data; those that do not are listed with the reason."""

import os
import re
import shutil

import pytest

from tests.docs import given
from tests.docs.not_run import NOT_RUN
from tests.docs.pages import PAGES, shell_lines
from tests.docs.shortened import shortened
from tests.docs.terminal import CommandError, Terminal

ROBOTS = ("README.md", "docs/index.md", "docs/own_data.md", "docs/robots.md", "docs/deployment.md")
"""Pages about recordings of a robot; the others are about simulators."""
FAST = ("README.md", "docs/own_data.md")
"""Pages whose commands each change runs; the others' are parsed (test_commands.py)."""
REAL_TIME = "--env robot:"
"""Commands in which a policy acts at a robot's rate: it stops when control steps are late, as on a busy machine."""
FINDINGS = {
    "imitate dataset doctor": (1, 3),
    "imitate check-deploy": (1,),
    "imitate diagnose": (1,),
}
"""Exit codes by which commands say that they found something."""


def reason(page, line):
    """The pattern by which a command is not run, or None."""
    return next((one for one in NOT_RUN if re.search(one, f"{page}: {line}")), None)


def to_run(page):
    return [line for line in shell_lines(page) if reason(page, line) is None]


def _cases():
    """Each page with its commands; those of the fast set without the ones in real time, which then run by night."""
    for page in PAGES:
        lines = to_run(page)
        at_once = [line for line in lines if REAL_TIME not in line]
        if page in FAST:
            yield pytest.param(
                page, at_once, marks=pytest.mark.slow("all commands of a page"), id=page
            )
        if lines != at_once:
            marks = [pytest.mark.nightly, pytest.mark.alone]
            yield pytest.param(page, lines, marks=marks, id=f"{page} in real time")
        elif lines and page not in FAST:
            yield pytest.param(page, lines, marks=pytest.mark.nightly, id=page)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with what pages take as given."""
    folder = tmp_path_factory.mktemp("given")
    given.install(folder)
    with pytest.MonkeyPatch.context() as patch, _in(folder, patch) as terminal:
        given.fill(terminal)
    return folder


@pytest.fixture
def terminal(page, template, tmp_path, monkeypatch, preloaded_commands):
    """A terminal in a new folder with what the page takes as given."""
    folder = tmp_path / "reader"
    shutil.copytree(template, folder, symlinks=True)
    with _in(folder, monkeypatch, program=str(preloaded_commands / "imitate")) as terminal:
        if page in ROBOTS:
            given.take_robots_files()
        given.prepare(page)
        yield terminal


def _in(folder, monkeypatch, **options):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder / ".site"))
    path = [str(folder / ".site"), str(given.tutorials.ROOT)]
    for name, value in {
        "IMITATE_TRUST_MODULES": ",".join(given.MODULES),
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / ".config"),
    }.items():
        monkeypatch.setenv(name, value)
    return Terminal(folder, **options)


@pytest.mark.parametrize(("page", "lines"), list(_cases()))
def test_the_commands_of_a_page_run_one_after_the_other(lines, terminal):
    for line in lines:
        command = " ".join(line.split()[:3])
        terminal.run(
            shortened(line),
            next((FINDINGS[one] for one in FINDINGS if command.startswith(one)), ()),
        )


def test_each_reason_is_one_of_a_command():
    lines = [
        f"{page}: {line}"
        for page in PAGES
        for line in [*shell_lines(page), *shell_lines(page, fenced=False, tutorial=True)]
    ]
    assert [one for one in NOT_RUN if not any(re.search(one, line) for line in lines)] == []


def test_indented_commands_of_tutorials_are_not_run_for_a_reason():
    """The fenced ones tests/examples/test_tutorials.py runs."""
    lines = [
        (page, line) for page in PAGES for line in shell_lines(page, fenced=False, tutorial=True)
    ]
    assert lines
    assert [f"{page}: {line}" for page, line in lines if reason(page, line) is None] == []


@pytest.mark.parametrize("line", ["imitate info nobody.hdf5", "cat nobody.hdf5"])
def test_a_command_that_does_not_work_is_found(line, tmp_path):
    with pytest.raises(CommandError, match="nobody.hdf5"):
        Terminal(tmp_path).run(line)


def test_commands_are_made_short_in_front_of_their_comments():
    assert (
        shortened("imitate run runs/my   # on a robot")
        == "imitate run runs/my --steps 3 --episodes 1 # on a robot"
    )
    assert shortened("ls  # all") == "ls # all"
