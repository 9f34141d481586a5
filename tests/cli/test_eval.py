"""`imitate eval`: numbers, comparison, exit codes."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from imitate.cli import eval as verb
from imitate.cli import eval_places
from imitate.cli.main import app
from imitate.cli.reports.evaluation import cpu_warning, short_name
from imitate.errors import ConfigError, EnvError, UserError
from imitate.evaluation.episodes import Episode
from imitate.evaluation.eval_result import EvalResult
from tests.loading import load

ground = load("tests/train/conftest.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ground.ENV_FOLDER))


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(verb.command)

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return invoke


def test_a_table_and_a_report_with_seeds(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth")
    report = tmp_path / "out" / "r.json"
    result = run("--agent", agent, "--episodes", 3, "--seed", 7, "--workers", 1, "--json", report)
    assert result.exit_code == 0, result.output
    assert "3/3 = 100.0 %" in result.stdout
    assert "43.9 - 100.0 %" in result.stdout
    assert "seeds 7 - 9, horizon 30" in result.stdout
    (evaluation,) = json.loads(report.read_text())["evaluations"]
    assert evaluation["success_rate"] == 1.0
    assert [episode["seed"] for episode in evaluation["per_episode"]] == [7, 8, 9]
    assert evaluation["checkpoint"] == str(agent)


def test_an_environment_that_ends_episodes_before_the_horizon(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth", gain=0.0)
    options = ("--agent", agent, "--episodes", 2, "--workers", 1)
    assert run(*options, "--horizon", 12).stdout.splitlines()[-1] == "seeds 0 - 1, horizon 12"
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps(ground.env_meta(max_episode_steps=29)))
    expert = ground.write_expert(tmp_path / "b.pth")
    shown = run("--agent", expert, *options, "--horizon", 40, "--env", meta).stdout.splitlines()
    told = "the environment itself ended failed episodes after at most 29 steps, before the horizon"
    assert [line for line in shown if told in line and "a.pth in " in line]
    assert not [line for line in shown if told in line and "b.pth in " in line]


def test_two_checkpoints_on_the_same_seeds(run, tmp_path):
    first = ground.write_expert(tmp_path / "a.pth")
    second = ground.write_expert(tmp_path / "b.pth", gain=0.0)
    report = tmp_path / "r.json"
    arguments = ("--agent", first, "--agent", second, "--workers", 1, "--horizon", 25)
    result = run(*arguments, "--episodes", 4, "--json", report)
    assert result.exit_code == 0, result.output
    assert "paired on 4 seeds: first - second = +100.0 %" in result.stdout
    assert "only the first succeeds 4 times, only the second 0; p = 0.125" in result.stdout
    data = json.loads(report.read_text())
    assert data["comparison"]["difference"] == 1.0
    assert [e["horizon"] for e in data["evaluations"]] == [25, 25]


def test_a_note_about_both_checkpoints_is_printed_once(run, tmp_path, monkeypatch):
    monkeypatch.setattr(EvalResult, "horizon_note", lambda self, option: "a longer horizon")
    agent = ground.write_expert(tmp_path / "a.pth")
    arguments = ("--agent", agent, "--agent", agent, "--workers", 1, "--horizon", 5)
    result = run(*arguments, "--episodes", 1)
    assert result.stderr.count("note: a longer horizon") == 1


def test_user_errors(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth", ground.env_meta(action_dim=3))
    result = run("--agent", agent, "--episodes", 1, "--workers", 1)
    assert isinstance(result.exception, EnvError)
    assert "takes actions of 3 numbers, the checkpoint gives 2" in str(result.exception)
    other = run("--agent", agent, "--episodes", 1, "--workers", 1, "--env", "point_mass:Nothing-v0")
    assert isinstance(other.exception, EnvError)


def test_a_typo_in_rename_is_told_before_the_question_of_trust(run, tmp_path):
    strange = {"env_name": "strange_module:Strange-v0", "type": 2, "env_kwargs": {}}
    agent = ground.write_expert(tmp_path / "a.pth", strange)
    untrusted = run("--agent", agent, "--episodes", 1, "--workers", 1)
    assert "--trust strange_module" in str(untrusted.exception)
    typo = run("--agent", agent, "--episodes", 1, "--workers", 1, "--rename", "position=pso")
    assert isinstance(typo.exception, UserError)
    assert "a.pth: rename position=pso: the policy has no observation 'pso'" in str(typo.exception)


def test_an_episode_that_cannot_be_played_is_exit_code_1(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth", ground.env_meta(raise_at=[1]))
    result = run("--agent", agent, "--episodes", 3, "--workers", 1)
    assert result.exit_code == 1
    assert "2/3" in result.stdout
    assert "warning: episode 1 (seed 1) could not be played" in result.stderr
    nothing = run("--agent", agent, "--episodes", 1, "--workers", 1, "--seed", 1)
    assert nothing.exit_code == 1
    assert "no episode could be played" in nothing.stderr


def test_a_video_for_each_checkpoint(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth")
    arguments = ("--agent", agent, "--agent", agent, "--episodes", 1, "--workers", 1)
    result = run(*arguments, "--video", tmp_path / "v.mp4", "--video-episodes", 1)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "v_1.mp4").stat().st_size > 0
    assert (tmp_path / "v_2.mp4").stat().st_size > 0


def test_the_name_of_a_checkpoint_in_the_table_tells_experiments_apart():
    assert short_name("/home/a/runs/lift_bc/2026/checkpoints/last.pth") == "lift_bc/2026/last.pth"
    assert short_name("/a/b/c/best.pth") == "b/c/best.pth"
    assert short_name("best.pth") == "best.pth"
    assert short_name(None) == "-"


# ---- several checkpoints -------------------------------------------------------------------------


def test_checkpoints_as_the_shell_names_them_and_a_table_that_is_resumed(run, tmp_path):
    agents = [ground.write_expert(tmp_path / f"{name}.pth", gain=g) for name, g in GAINS.items()]
    table, report = tmp_path / "out" / "table.json", tmp_path / "report.json"
    options = ("--episodes", 2, "--workers", 1, "--env", "all", "--table", table)
    first = run("--agent", *agents[:2], *options)
    assert first.exit_code == 0, first.output
    before = json.loads(table.read_text())["evaluations"]
    again = run("--agent", *agents, *options, "--resume", "--json", report)
    assert again.exit_code == 0, again.output
    assert "2 of 3 are there already" in again.stderr
    after = json.loads(table.read_text())["evaluations"]
    assert after[:2] == before and len(after) == 3
    shown = json.loads(report.read_text())["evaluations"]
    assert [entry["checkpoint"] for entry in shown] == [str(agent) for agent in agents]
    assert [entry["successes"] for entry in shown] == [2, 0, 2]
    assert shown == [{k: v for k, v in entry.items() if k != "settings"} for entry in after]
    assert all(f"{name}.pth" in again.stdout for name in GAINS)
    # Other numbers under the same name are other evaluations.
    ground.write_expert(agents[0], gain=0.0)
    changed = run("--agent", agents[0], *options, "--resume")
    assert "0/2" in changed.stdout and len(json.loads(table.read_text())["evaluations"]) == 4
    refused = run("--agent", agents[0], *options)
    assert isinstance(refused.exception, ConfigError)
    assert "continue it with --resume" in str(refused.exception)


@pytest.mark.parametrize("written", ["auto", "processes", "an older version"])
def test_a_table_is_resumed_whether_its_mode_was_named_or_not(run, tmp_path, written):
    agent, table = ground.write_expert(tmp_path / "a.pth"), tmp_path / "t.json"
    options = ("--agent", agent, "--episodes", 2, "--workers", 1, "--table", table)
    run(*options, "--mode", "processes" if written == "processes" else "auto")
    saved = json.loads(table.read_text())
    assert saved["evaluations"][0]["settings"]["mode"] == "processes"
    if written == "an older version":
        saved["evaluations"][0]["settings"]["mode"] = "auto"
        table.write_text(json.dumps(saved))
    for mode in ("auto", "processes"):
        again = run(*options, "--resume", "--mode", mode)
        assert "1 of 1 are there already" in again.stderr
    other = run(*options, "--resume", "--mode", "vector")
    assert "are there already" not in other.stderr
    assert len(json.loads(table.read_text())["evaluations"]) == 2


def test_an_interrupted_evaluation_is_resumed_with_its_episodes(run, tmp_path, monkeypatch):
    agent = ground.write_expert(tmp_path / "a.pth", noise=0.5)
    table, whole, log = (tmp_path / name for name in ("t.json", "whole.json", "t.json.episodes"))
    options = ("--agent", agent, "--episodes", 5, "--workers", 1)
    add, seen = eval_places._Successes.add, []

    def stop(count, episode):
        seen.append(episode.index)
        if len(seen) == 3:
            raise KeyboardInterrupt
        add(count, episode)

    monkeypatch.setattr(eval_places._Successes, "add", stop)
    run(*options, "--table", table)
    assert not table.exists() and len(log.read_text().splitlines()) == 3
    refused = run(*options, "--table", table)
    assert isinstance(refused.exception, ConfigError) and f"{log}: exists" in str(refused.exception)
    log.write_text(log.read_text()[:-9])  # a kill in the middle of the third line
    resumed = run(*options, "--table", table, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "0 of 1 are there already, and 2 episodes of the others" in resumed.stderr
    assert seen == [0, 1, 2, 2, 3, 4] and not log.exists()
    run(*options, "--json", whole)
    (found,), (wanted,) = (json.loads(p.read_text())["evaluations"] for p in (table, whole))
    assert found["per_episode"] == wanted["per_episode"]
    assert {episode["cpu"] for episode in found["per_episode"]} == set(found["cpu_models"])


def test_a_comparison_over_several_models_of_processors_is_warned_of():
    episode = Episode(0, 0, True, 1.0, 3, True)
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


GAINS = {"a": 4.0, "b": 0.0, "c": 4.0}


def test_an_evaluation_that_fails_is_named_and_the_others_go_on(run, tmp_path):
    good = ground.write_expert(tmp_path / "good.pth")
    bad = ground.write_expert(tmp_path / "bad.pth", ground.env_meta(action_dim=3))
    table = tmp_path / "table.json"
    result = run("--agent", bad, good, "--episodes", 2, "--workers", 1, "--table", table)
    assert result.exit_code == 1
    assert "2/2 = 100.0 %" in result.stdout
    assert "bad.pth: environment 'point_mass:PointMass-v0' takes actions of 3" in result.stderr
    (entry,) = json.loads(table.read_text())["evaluations"]
    assert entry["checkpoint"] == str(good)


def test_several_environments_by_name(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth")
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**ground.env_meta(impossible_at=[0, 1]), "key": "impossible"}))
    envs = ("--env", "all", "--env", other)
    result = run("--agent", agent, *envs, "--episodes", 2, "--workers", 1, "--horizon", 20)
    assert result.exit_code == 0, result.output
    assert "2/2 = 100.0 %" in result.stdout and "0/2 = 0.0 %" in result.stdout
    assert "mean of 2 environments 50.0 %" in result.stdout


def test_modules_of_each_environment_that_is_named_are_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr("imitate.envs.trust.trust_env", (trusted := []).append)
    missing = str(tmp_path / "none.pth")
    named = ["--env", "first:A-v0", "--env", "Lift", "--env", "second:B-v0"]
    CliRunner().invoke(app, ["eval", "--agent", missing, *named])
    CliRunner().invoke(app, ["eval", "--agent", missing, "--env", "third:C-v0"])
    assert trusted == ["first:A-v0", "second:B-v0", "third:C-v0"]


RENAMED = ("--rename", "goal=aim", "--rename", "pos=here")


def test_observations_under_other_names(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth", keys=("aim", "here"))
    played = ("--agent", agent, "--episodes", 2, "--workers", 1)
    result = run(*played, *RENAMED)
    assert result.exit_code == 0, result.output
    assert "2/2 = 100.0 %" in result.stdout
    swapped = run(*played, "--rename", "pos=aim", "--rename", "goal=here", "--horizon", 5)
    assert "0/2 = 0.0 %" in swapped.stdout


def test_names_that_do_not_exist(run, tmp_path):
    agent = ground.write_expert(tmp_path / "a.pth", keys=("aim", "here"))
    played = ("--agent", agent, "--episodes", 1, "--workers", 1)
    assert "did you mean 'aim'" in str(run(*played, "--rename", "goal=aims").exception)
    missed = str(run(*played, "--rename", "goals=aim", "--rename", "pos=here").exception)
    assert "no observation 'goals'; did you mean 'goal'" in missed
    assert "--rename NEW=goals" in missed


def test_names_saved_in_a_copy_are_used_and_told(run, tmp_path):
    agent, copy = ground.write_expert(tmp_path / "a.pth", keys=("aim", "here")), tmp_path / "b.pth"
    before = agent.read_bytes()
    convert = ["convert-checkpoint", str(agent), str(copy), *RENAMED]
    wrong = CliRunner().invoke(app, convert)
    assert wrong.exit_code == 2 and "add --to imitate" in wrong.stderr
    done = CliRunner().invoke(app, [*convert, "--to", "imitate"])
    assert done.exit_code == 0, done.output
    assert "takes 'goal' as 'aim', 'pos' as 'here'" in done.stdout
    assert agent.read_bytes() == before
    result = run("--agent", copy, "--episodes", 1, "--workers", 1)
    assert "1/1 = 100.0 %" in result.stdout
    assert "b.pth: takes 'goal' as 'aim', 'pos' as 'here', as saved in it" in result.stderr
    assert "takes" in CliRunner().invoke(app, ["info", str(copy)]).stdout
