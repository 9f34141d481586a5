"""The file of a comparison: what a kill leaves of it, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from imitate.deploy.comparison.trial_file import Redo, Trial, TrialFile, first_of_pair
from imitate.errors import UserError
from tests.refusals import refused

POLICIES = {
    "A": {"name": "a.pth", "sha256": "aa" * 32},
    "B": {"name": "b.pth", "sha256": "bb" * 32},
}
SETTINGS = {"alpha": 0.05, "steps": 10, "judge": "robot"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "comparison.jsonl"


def begun(path, **changes):
    return TrialFile(path, POLICIES, {**SETTINGS, **changes})


def test_it_is_read_as_it_was_written(path):
    with begun(path) as file:
        assert file.next == (0, 0)
        file.add(Trial(0, 0, True, progress=9, pictures={"camera": "x.png"}, report={"steps": 3}))
        file.add_redo(Redo(0, 1, "the cable was caught"))
        assert file.next == (0, 1)
        file.add(Trial(0, 1, False, note="missed", stopped="late"))
        order = [file.policy(k, 0) for k in range(50)]
    with begun(path) as again:
        assert again.trials == file.trials
        assert again.redos == [Redo(0, 1, "the cable was caught")]
        assert again.next == (1, 0)
        assert [again.policy(k, 0) for k in range(50)] == order
    assert TrialFile(path).trials == file.trials


def test_both_policies_act_in_each_pair_in_an_order_like_a_fair_coin(path):
    with begun(path) as file:
        firsts = [file.policy(k, 0) for k in range(400)]
        assert all(file.policy(k, 1) == {"A": "B", "B": "A"}[firsts[k]] for k in range(400))
    assert 140 < firsts.count("A") < 260
    assert [first_of_pair("one", k) for k in range(64)] != [
        first_of_pair("other", k) for k in range(64)
    ]


def test_trials_do_not_say_which_policy_acted(path):
    with begun(path) as file:
        file.add(Trial(0, 0, True))
    record = json.loads(path.read_text().splitlines()[1])
    assert not {"policy", "name", "sha256"} & set(record)
    assert "A" not in str(record.values())


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_a_kill_cut_short_is_left_out(path, cut):
    with begun(path) as file:
        file.add(Trial(0, 0, True))
        kept = path.read_bytes()
        file.add(Trial(0, 1, True))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert TrialFile(path).trials == [Trial(0, 0, True)]
    with begun(path) as file:
        assert path.read_bytes() == kept
        assert file.next == (0, 1)
        file.add(Trial(0, 1, True))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("length", [0, 1, 10, 60])
def test_a_first_line_that_a_kill_cut_short_is_begun_anew(path, length):
    begun(path).close()
    path.write_bytes(path.read_bytes()[:length])
    with begun(path) as file:
        assert file.next == (0, 0)
    assert len(path.read_text().splitlines()) == 1


OTHER = {**POLICIES, "B": {"name": "b.pth", "sha256": "cc" * 32}}


@pytest.mark.parametrize(
    ("policies", "changes", "words"),
    [
        (OTHER, {}, "another policy B (b.pth, sha256 bbbbbbbbbbbb) than b.pth"),
        (POLICIES, {"steps": 20}, "begun with steps 10, not 20"),
        (POLICIES, {"slow": 0.5}, "begun with slow null, not 0.5"),
    ],
)
def test_other_policies_and_settings_are_refused(path, policies, changes, words):
    begun(path).close()
    before = path.read_bytes()
    with refused(words, error=UserError):
        TrialFile(path, policies, {**SETTINGS, **changes})
    assert path.read_bytes() == before


def test_the_same_weights_may_be_at_another_place(path):
    begun(path).close()
    moved = {**POLICIES, "A": {"name": "elsewhere/a.pth", "sha256": "aa" * 32}}
    TrialFile(path, moved, SETTINGS).close()


VERSION = '{"kind": "comparison", "version": 99}\n'


@pytest.mark.parametrize("content", ["mine", '{"kind": "other"}\n', VERSION, "[1]\n", "{}"])
def test_a_file_that_is_something_else_stays_as_it_is(tmp_path, content):
    path = tmp_path / "mine"
    path.write_text(content)
    for read in (begun, TrialFile):
        with refused("version 99" if content == VERSION else "comparison", error=UserError):
            read(path)
    assert path.read_text() == content


FIRST = {
    "kind": "comparison",
    "version": 1,
    "imitate": "1",
    "policies": POLICIES,
    "settings": SETTINGS,
    "order": "5",
}
TRIAL = {"kind": "trial", "pair": 0, "position": 0, "success": True}


@pytest.mark.parametrize("picture", ["/dev/tty", "../other.png", "a/../../other.png"])
def test_a_picture_outside_of_the_folder_is_not_read(path, picture):
    path.parent.mkdir()
    path.write_text(
        json.dumps(FIRST) + "\n" + json.dumps({**TRIAL, "pictures": {"camera": picture}}) + "\n"
    )
    with refused(f"names '{picture}', which is outside of the folder", error=UserError):
        TrialFile(path)


@pytest.mark.parametrize("line", [
    *({**FIRST, key: value} for key in ("version", "policies", "settings", "order") for value in (None, [], {})),
    *({**FIRST, "policies": {**POLICIES, "A": odd}} for odd in (None, {"name": "a"}, {"name": 1, "sha256": "a"})),
    *({**FIRST, "settings": {**SETTINGS, "alpha": odd}} for odd in (0.0, 1, "x", 1e999)),
    *({**TRIAL, **odd} for odd in (
        {"success": "x"}, {"success": 1}, {"progress": "../x"}, {"progress": 10**400}, {"stopped": [[]]},
        {"note": None}, {"pair": "0"}, {"pair": 3}, {"position": 1}, {"pictures": 3}, {"pictures": {"a": 3}},
        {"report": 3},
    )),
    *({"kind": "redo", "pair": 0, "position": 0, "reason": "fell", **odd} for odd in ({"reason": 3}, {"position": 2})),
    {"kind": "revealed", "pairs": "all"},
], ids=json.dumps)  # fmt: skip
def test_a_line_with_what_no_comparison_has_is_refused(path, line):
    path.parent.mkdir()
    lines = [line] if line["kind"] == "comparison" else [FIRST, line]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with refused(f"line {len(lines)}: is not a line of a comparison", error=UserError):
        TrialFile(path)


def test_a_damaged_line_and_a_file_that_is_not_there_are_named(path):
    with begun(path) as file:
        file.add(Trial(0, 0, True))
    path.write_bytes(path.read_bytes() + b'{"kind": "trial", "colour": 1}\n')
    with refused("line 3", error=UserError):
        TrialFile(path)
    with refused("no such comparison", error=UserError):
        TrialFile(path.parent / "none.jsonl")


def test_a_reveal_is_noted_once_also_in_a_file_that_is_only_read(path):
    with begun(path) as file:
        file.add(Trial(0, 0, True))
        file.add(Trial(0, 1, True))
        file.add(Trial(1, 0, True))
    for _ in range(2):
        with TrialFile(path) as file:
            file.reveal()
    assert TrialFile(path).revealed == 1
    assert path.read_text().count("revealed") == 1


def test_a_full_disk_is_told_in_one_line_and_loses_no_earlier_trial(tmp_path):
    """A limit of the file's size stands for the full disk; it is set in a process of its own."""
    path = tmp_path / "c.jsonl"
    code = """
import resource, signal, sys
from pathlib import Path
from imitate.deploy.comparison.trial_file import Trial, TrialFile
from imitate.errors import UserError

path = Path(sys.argv[1])
policies = {"A": {"name": "a", "sha256": "1"}, "B": {"name": "b", "sha256": "2"}}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TrialFile(path, policies, {"alpha": 0.05, "judge": "person"}) as file:
    file.add(Trial(0, 0, True))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20,) * 2)
    try:
        file.add(Trial(0, 1, True))
    except UserError as error:
        print(error)
"""
    words = [sys.executable, "-c", code, path]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"{path}: cannot be written (File too large)" in done.stdout
    with TrialFile(path) as file:
        assert [trial.position for trial in file.trials] == [0]


def test_a_file_without_policies_or_settings_is_only_read(path):
    with begun(path) as file:
        file.add(Trial(0, 0, True))
    for given in ({"policies": POLICIES}, {"settings": SETTINGS}, {}):
        only = TrialFile(path, **given)
        assert only.trials == file.trials
        for add in (only.add, file.add):
            with refused(f"{path}: is open for reading only", error=UserError):
                add(Trial(0, 1, True))
        with refused("open for reading only", error=UserError):
            only.add_redo(Redo(0, 1, "why"))


def test_a_hole_in_a_comparison_is_not_read(path):
    begun(path).close()
    os.truncate(path, 2**36)
    with refused(f"{path}: is not a comparison; give another --out", error=UserError):
        begun(path)
