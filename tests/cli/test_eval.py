"""`imitate eval`: numbers, comparison, exit codes."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import imitate
from imitate.cli import eval_jobs
from imitate.cli.eval_jobs import compare, comparison_lines, cpu_warning, short_name, table
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.result import EpisodeResult, EvalResult
from imitate.policy import checkpoint
from imitate.train.outcomes import rollout_numbers
from tests.loading import load

PACKAGE = str(Path(imitate.__file__).parent) + "/"
ground = load("tests/train/conftest.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ground.ENV_FOLDER))


@pytest.fixture
def play(call):
    """Calls ``imitate eval`` with one worker in the test's folder."""
    return lambda line, code=0: call(f"eval --workers 1 {line}", code=code)


def evaluations(path):
    return json.loads(Path(path).read_text())["evaluations"]


def test_a_table_and_a_report_with_seeds(play):
    ground.write_expert(Path("a.pth"))
    printed = play("--agent a.pth --episodes 3 --seed 7 --out out/r.json").stdout
    for words in ("3/3 = 100.0 %", "43.9 - 100.0 %", "seeds 7 - 9, horizon 30"):
        assert words in printed
    (evaluation,) = evaluations("out/r.json")
    assert evaluation["success_rate"] == 1.0
    assert [episode["seed"] for episode in evaluation["per_episode"]] == [7, 8, 9]
    assert evaluation["checkpoint"] == "a.pth"


def test_json_is_printed_in_place_of_the_table(play):
    ground.write_expert(Path("a.pth"))
    done = play("--agent a.pth --episodes 2 --json --out r.json")
    assert json.loads(done.stdout) == json.loads(Path("r.json").read_text())
    assert len(evaluations("r.json")[0]["per_episode"]) == 2


def test_a_checkpoint_is_read_once_whatever_is_asked_of_it(play, monkeypatch):
    """Workers, which are other processes, read it once more each."""
    ground.write_expert(Path("a.pth"))
    read, check = [], checkpoint.check_archive
    monkeypatch.setattr(checkpoint, "check_archive", lambda *of: read.append(of) or check(*of))
    play("--agent a.pth a.pth --episodes 1 --table t.json --env all --env point_mass:PointMass-v0")
    assert len(read) == 1
    here = evaluate("a.pth", settings=EvalSettings(episodes=1))  # in this process
    assert here.rate.successes == 1
    assert len(read) == 2


def test_an_evaluation_is_read_in_few_files(play):
    """Files of the package whose functions the process of the command enters, apart from those of its workers."""
    ground.write_expert(Path("a.pth"))
    entered, before = set(), sys.getprofile()

    def note(frame, event, arg):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
            entered.add(path.removeprefix(PACKAGE))

    sys.setprofile(note)
    play("--agent a.pth --episodes 2")
    sys.setprofile(before)
    assert "evaluate/evaluate.py" in entered and len(entered) <= 47, sorted(entered)


def test_an_environment_that_ends_episodes_before_the_horizon(play):
    ground.write_expert(Path("a.pth"), gain=0.0)
    ground.write_expert(Path("b.pth"))
    printed = play("--agent a.pth --episodes 2 --horizon 12").stdout
    assert printed.splitlines()[-1] == "seeds 0 - 1, horizon 12"
    Path("meta.json").write_text(json.dumps(ground.env_meta(max_episode_steps=29)))
    shown = play("--agent b.pth a.pth --episodes 2 --horizon 40 --env meta.json").stdout
    told = "the environment itself ended failed episodes after at most 29 steps, before the horizon"
    (line,) = [line for line in shown.splitlines() if told in line]
    assert "a.pth in " in line


def test_a_program_has_its_name_in_the_table(play):
    Path("meta.json").write_text(json.dumps(ground.env_meta()))
    printed = play("--agent random --episodes 1 --horizon 3 --env meta.json").stdout
    assert printed.splitlines()[1].startswith("random ")


def test_two_checkpoints_on_the_same_seeds(play):
    ground.write_expert(Path("a.pth"))
    ground.write_expert(Path("b.pth"), gain=0.0)
    printed = play("--agent a.pth --agent b.pth --horizon 25 --episodes 4 --out r.json").stdout
    assert "paired on 4 seeds: first - second = +100.0 %" in printed
    assert "only the first succeeds 4 times, only the second 0; p = 0.125" in printed
    data = json.loads(Path("r.json").read_text())
    assert data["comparison"]["difference"] == 1.0
    assert [e["horizon"] for e in data["evaluations"]] == [25, 25]


def test_a_note_about_both_checkpoints_is_printed_once(play, monkeypatch):
    monkeypatch.setattr(EvalResult, "horizon_note", lambda self, option: "a longer horizon")
    ground.write_expert(Path("a.pth"))
    told = play("--agent a.pth --agent a.pth --horizon 5 --episodes 1").stderr
    assert told.count("note: a longer horizon") == 1


def test_what_does_not_fit_the_checkpoint_is_one_line(play):
    ground.write_expert(Path("a.pth"), ground.env_meta(action_dim=3))
    told = play("--agent a.pth --episodes 1", code=2).stderr
    assert "takes actions of 3 numbers, but the checkpoint gives 2" in told
    play("--agent a.pth --episodes 1 --env point_mass:Nothing-v0", code=2)


def test_a_typo_in_rename_is_told_before_the_question_of_trust(play):
    strange = {"env_name": "strange_module:Strange-v0", "type": 2, "env_kwargs": {}}
    ground.write_expert(Path("a.pth"), strange)
    assert "--trust strange_module" in play("--agent a.pth --episodes 1", code=2).stderr
    typo = play("--agent a.pth --episodes 1 --rename position=pso", code=2).stderr
    assert "a.pth: rename position=pso: the policy has no observation 'pso'" in typo


def test_an_episode_that_cannot_be_played_is_exit_code_1(play):
    ground.write_expert(Path("a.pth"), ground.env_meta(raise_at=[1]))
    result = play("--agent a.pth --episodes 3", code=1)
    assert "2/3" in result.stdout
    assert "warning: episode 1 (seed 1) could not be played" in result.stderr
    nothing = play("--agent a.pth --episodes 1 --seed 1", code=1)
    assert "no episode could be played" in nothing.stderr


def test_a_video_for_each_checkpoint(play):
    ground.write_expert(Path("a.pth"))
    play("--agent a.pth --agent a.pth --episodes 1 --video v.mp4 --video-episodes 1")
    assert Path("v_1.mp4").stat().st_size > 0
    assert Path("v_2.mp4").stat().st_size > 0


def test_the_name_of_a_checkpoint_in_the_table_tells_experiments_apart():
    assert short_name("/home/a/runs/lift_bc/2026/checkpoints/last.pth") == "lift_bc/2026/last.pth"
    assert short_name("/a/b/c/best.pth") == "b/c/best.pth"
    assert short_name("best.pth") == "best.pth"
    assert short_name(None) == "-"


# ---- several checkpoints -------------------------------------------------------------------------


def test_checkpoints_as_the_shell_names_them_and_a_table_that_is_resumed(play):
    for name, gain in {"a": 4.0, "b": 0.0, "c": 4.0}.items():
        ground.write_expert(Path(f"{name}.pth"), gain=gain)
    options = "--episodes 2 --env all --table out/table.json"
    play(f"--agent a.pth b.pth {options}")
    before = evaluations("out/table.json")
    again = play(f"--agent a.pth b.pth c.pth {options} --resume --out report.json")
    assert "2 of 3 evaluations finished already" in again.stderr
    after = evaluations("out/table.json")
    assert after[:2] == before and len(after) == 3
    shown = evaluations("report.json")
    assert [entry["checkpoint"] for entry in shown] == ["a.pth", "b.pth", "c.pth"]
    assert [entry["successes"] for entry in shown] == [2, 0, 2]
    assert shown == [{k: v for k, v in entry.items() if k != "settings"} for entry in after]
    assert all(f"{name}.pth" in again.stdout for name in "abc")
    # Other numbers under the same name are other evaluations.
    ground.write_expert(Path("a.pth"), gain=0.0)
    changed = play(f"--agent a.pth {options} --resume")
    assert "0/2" in changed.stdout and len(evaluations("out/table.json")) == 4
    assert "continue it with --resume" in play(f"--agent a.pth {options}", code=2).stderr


def test_a_table_is_resumed_whether_its_mode_was_named_or_not(play):
    ground.write_expert(Path("a.pth"))
    options = "--agent a.pth --episodes 2 --table t.json --mode"
    play(f"{options} auto")
    saved = json.loads(Path("t.json").read_text())
    assert saved["evaluations"][0]["settings"]["mode"] == "processes"
    for mode in ("auto", "processes"):
        assert "1 of 1 evaluation finished already" in play(f"{options} {mode} --resume").stderr
    assert "are there already" not in play(f"{options} vector --resume").stderr
    assert len(evaluations("t.json")) == 2


def test_an_interrupted_evaluation_is_resumed_with_its_episodes(play, monkeypatch):
    ground.write_expert(Path("a.pth"), noise=0.5)
    table, log = Path("t.json"), Path("t.json.episodes")
    add, seen = eval_jobs.Count.add, []

    def stop(count, episode):
        seen.append(episode.index)
        if len(seen) == 3:
            raise KeyboardInterrupt
        add(count, episode)

    monkeypatch.setattr(eval_jobs.Count, "add", stop)
    line = "--agent a.pth --episodes 5"
    play(f"{line} --table t.json", code=130)
    assert not table.exists() and len(log.read_text().splitlines()) == 3
    assert "t.json.episodes: exists" in play(f"{line} --table t.json", code=2).stderr
    log.write_text(log.read_text()[:-9])  # a kill in the middle of the third line
    resumed = play(f"{line} --table t.json --resume")
    assert "0 of 1 evaluation finished already, and 2 episodes of unfinished ones" in resumed.stderr
    assert seen == [0, 1, 2, 2, 3, 4] and not log.exists()
    play(f"{line} --out whole.json")
    (found,), (wanted,) = evaluations(table), evaluations("whole.json")
    assert found["per_episode"] == wanted["per_episode"]
    assert {episode["cpu"] for episode in found["per_episode"]} == set(found["cpu_models"])


def test_a_comparison_over_several_models_of_processors_is_warned_of():
    episode = EpisodeResult(0, 0, True, 1.0, 3, True)
    models = [("a", "a"), ("a", "b"), ("b", None)]
    results = [
        EvalResult(
            "env", "x.pth", tuple(replace(episode, cpu=cpu) for cpu in pair), 2, 3, 0, "m", 1, 1.0
        )
        for pair in models
    ]
    assert cpu_warning(results[:1]) is None and cpu_warning(results[2:]) is None
    assert "on 2 CPU models (a; b)" in cpu_warning([results[0], results[2]])
    assert "on 2 CPU models (a; b)" in cpu_warning(results[1:2])


def evaluation(checkpoint, *episodes, env="Hopper-v5"):
    """An evaluation with these outcomes and returns."""
    played = (EpisodeResult(i, i, *pair, 9, pair[0]) for i, pair in enumerate(episodes))
    return EvalResult(env, checkpoint, tuple(played), len(episodes), 9, 0, "m", 1, 1.0)


def test_returns_take_the_place_of_a_success_that_is_unknown():
    # Returns 1000 and 2000: mean 1500, deviation 707.1; 12.7062 * 500 = 6353. D4RL: 1520.27 / 3254.57.
    silent = evaluation("a.pth", (None, 1000.0), (None, 2000.0))
    header, row, *_ = table([silent])
    assert header.split("  ")[-1] == "seconds" and "success" not in header
    words = ["a.pth", "Hopper-v5", "1500 ± 710", "-4853 to 7853", "46.7", "9.0", "1.0"]
    assert re.split(" {2,}", row) == words
    logged = rollout_numbers([silent])
    scores = [logged[f"Rollout/D4RL_Score{end}"] for end in ("", "_Std")]
    assert "Rollout/Success_Rate" not in logged and scores == pytest.approx(
        [46.7119, 21.7266], abs=1e-4
    )
    compared = compare([Path("a"), Path("b")], [silent, evaluation("b", (True, 0.0), (True, 1.0))])
    assert compared.success is None and compared.returns.value == 1499.5
    (line,) = comparison_lines(compared)
    assert line.startswith("return on 2 seeds: first - second = +1500 (95 % interval")


def test_a_return_that_is_the_success_is_not_repeated():
    one, other = (evaluation(name, (True, 1.0), (False, 0.0)) for name in "ab")
    assert "±" not in "\n".join(table([one])) and one.to_dict()["return_std"] is None
    compared = compare([Path("a"), Path("b")], [one, other])
    assert compared.returns is None and compared.to_dict()["n"] == 2
    assert len(comparison_lines(compared)) == 1


def test_an_evaluation_that_fails_is_named_and_the_others_go_on(play):
    ground.write_expert(Path("good.pth"))
    ground.write_expert(Path("bad.pth"), ground.env_meta(action_dim=3))
    result = play("--agent bad.pth good.pth --episodes 2 --table table.json", code=1)
    assert "2/2 = 100.0 %" in result.stdout
    assert "bad.pth: environment 'point_mass:PointMass-v0' takes actions of 3" in result.stderr
    (entry,) = evaluations("table.json")
    assert entry["checkpoint"] == "good.pth"


def test_several_environments_by_name(play):
    ground.write_expert(Path("a.pth"))
    other = {**ground.env_meta(impossible_at=[0, 1]), "key": "impossible"}
    Path("other.json").write_text(json.dumps(other))
    printed = play("--agent a.pth --env all --env other.json --episodes 2 --horizon 20").stdout
    assert "2/2 = 100.0 %" in printed and "0/2 = 0.0 %" in printed
    assert "mean of 2 environments 50.0 %" in printed


def test_modules_of_each_environment_that_is_named_are_trusted(call, monkeypatch):
    monkeypatch.setattr("imitate.system.trust.trust_env", (trusted := []).append)
    call("eval --agent none.pth --env first:A-v0 --env Lift --env second:B-v0", code=2)
    call("eval --agent none.pth --env third:C-v0", code=2)
    assert trusted == ["first:A-v0", "second:B-v0", "third:C-v0"]


def test_observations_under_other_names(call, play):
    """In the command, and saved in a copy of the checkpoint."""
    agent = ground.write_expert(Path("a.pth"), keys=("aim", "here"))
    renamed = "--rename goal=aim --rename pos=here"
    assert "2/2 = 100.0 %" in play(f"--agent a.pth --episodes 2 {renamed}").stdout
    swapped = "--rename pos=aim --rename goal=here"
    assert "0/2 = 0.0 %" in play(f"--agent a.pth --episodes 2 --horizon 5 {swapped}").stdout
    missed = play("--agent a.pth --rename goals=aim --rename pos=here", code=2).stderr
    assert "no observation 'goals'; did you mean 'goal'" in missed
    assert "--rename NEW=goals" in missed
    before = agent.read_bytes()
    convert = f"convert-checkpoint a.pth b.pth {renamed}"
    assert "add --to imitate" in call(convert, code=2).stderr
    assert "takes 'goal' as 'aim', 'pos' as 'here'" in call(f"{convert} --to imitate").stdout
    assert agent.read_bytes() == before
    result = play("--agent b.pth --episodes 1")
    assert "1/1 = 100.0 %" in result.stdout
    assert "b.pth: takes 'goal' as 'aim', 'pos' as 'here', as saved in it" in result.stderr
    assert "takes" in call("info b.pth").stdout
