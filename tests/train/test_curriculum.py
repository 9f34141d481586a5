"""Curriculum: when stages change, and what a run and its resume make of it."""

import json

import pytest
import torch

from imitate.config import load_config
from imitate.config.curriculum import CurriculumConfig
from imitate.errors import ConfigError, EnvError
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.curriculum import Curriculum
from imitate.train.online_batches import OnlineBatches
from imitate.train.trainer import train

LEDGE = "imitate.envs.staged_tasks:Ledge-v0"
ALWAYS = {"until": {"success_rate": 0.0}}


def curriculum(*untils, **settings):
    stages = [{"until": until} for until in untils] + [{}]
    metas = [{"env_name": "walk", "env_kwargs": {"length": n}} for n in range(len(stages))]
    config = CurriculumConfig.model_validate({"stages": stages, **settings})
    return Curriculum(config, metas)


def numbers(success=0.0, mean_return=0.0):
    return {"Curriculum/Success_Rate": success, "Curriculum/Return": mean_return}


def test_a_stage_ends_where_all_its_conditions_hold():
    made = curriculum({"success_rate": 0.8, "min_steps": 100}, {"mean_return": 5.0})
    assert not made.judge(1, 50, numbers(success=0.9))  # too early
    assert not made.judge(2, 150, numbers(success=0.7))
    assert made.judge(3, 200, numbers(success=0.8))
    assert made.stage == 1
    assert not made.judge(4, 210, numbers(success=1.0, mean_return=4.9))
    assert made.judge(5, 220, numbers(mean_return=5.0))
    assert made.is_last and not made.judge(6, 230, numbers(1.0, 9.0))


def test_steps_are_counted_from_the_stage_s_beginning():
    made = curriculum({"min_steps": 100}, {"min_steps": 100})
    assert made.judge(1, 100, numbers())
    assert not made.judge(2, 199, numbers())
    assert made.judge(3, 200, numbers())


def test_an_evaluation_is_judged_once():
    made = curriculum({"success_rate": 0.5}, {"success_rate": 0.5})
    assert made.judge(1, 10, numbers(success=1.0))
    again = curriculum({"success_rate": 0.5}, {"success_rate": 0.5})
    again.load_state_dict(made.state_dict())
    assert not again.judge(1, 10, numbers(success=1.0)) and again.stage == 1


@pytest.mark.parametrize(("evaluate", "lengths"), [("both", [1, 0]), ("stage", [0]), ("last", [1])])
def test_where_evaluations_are_played(evaluate, lengths):
    made = curriculum({"success_rate": 0.5}, evaluate=evaluate)
    assert [meta["env_kwargs"]["length"] for meta in made.evaluated] == lengths
    made.judge(1, 10, numbers(success=1.0))
    assert [meta["env_kwargs"]["length"] for meta in made.evaluated] == [1]


def test_a_stage_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="stage 1 of 2 has no end"):
        load_config({"train": {"online": {"curriculum": {"stages": [{}, {}]}}}})


def tree(name="ppo", stages=(), **curriculum):
    stages = stages or [{"name": "near", "env_kwargs": {"length": 1}, **ALWAYS}, {}]
    return {
        "algo_name": name,
        "experiment": {
            "name": "ledge",
            "epoch_every_n_steps": 64,
            "validate": False,
            "render_video": False,
            "logging": {"log_tb": False},
            "rollout": {"enabled": True, "n": 2, "horizon": 20, "rate": 2, "num_workers": 0},
        },
        "train": {
            "num_epochs": 4,
            "batch_size": 16,
            "num_threads": 1,
            "cuda": False,
            "online": {
                "env": LEDGE,
                "num_envs": 2,
                "collect_steps": 8,
                "warmup_steps": 16,
                "update_ratio": 0.1,
                "curriculum": {"stages": stages, **curriculum},
            },
        },
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }


def records(result, kind):
    text = (result.run_dir / "metrics.jsonl").read_text()
    return [r for r in map(json.loads, text.splitlines()) if r["kind"] == kind]


@pytest.mark.parametrize(
    ("name", "settings"), [("ppo", {}), ("dqn", {"buffer": "clear"}), ("dqn", {"buffer": "keep"})]
)
def test_a_run_goes_through_its_stages(tmp_path, name, settings):
    result = train(tree(name, **settings), output_dir=tmp_path, quiet=True)
    assert [r["Curriculum/Stage"] for r in records(result, "epoch")] == [1, 1, 2, 2]
    # The first evaluation has two environments; the checkpoint is judged by the last stage alone.
    first, second = records(result, "rollout")
    assert first["Curriculum/Stage"] == 1 and second["Curriculum/Stage"] == 2
    assert second["Curriculum/Return"] == second["Rollout/Return"]
    assert "stage 1 of 2, near" in (result.run_dir / "log.txt").read_text()
    ckpt = load_checkpoint(result.run_dir / "checkpoints/last.pth")
    assert ckpt["env_metadata"]["env_kwargs"] == {}
    online = ckpt["train_state"]["online"]
    assert online["curriculum"]["stage"] == 1
    steps = 64 * (2 if settings.get("buffer") == "clear" else 4)
    if name == "dqn":
        path = result.run_dir / "checkpoints" / online["memory"]
        live = torch.load(path, weights_only=True)["rows"]["live"]
        assert int(live.sum()) == steps


def test_a_run_that_is_killed_after_an_evaluation_resumes_in_the_next_stage(tmp_path, monkeypatch):
    """The checkpoint is of the stage before; the evaluation that ended it lies in the metrics file."""

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OnlineBatches, "begin_stage", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tree(), output_dir=tmp_path, quiet=True)
    (folder,) = tmp_path.glob("ledge/*")
    before = load_checkpoint(folder / "checkpoints/last.pth")["train_state"]
    assert before["online"]["curriculum"]["stage"] == 0 and before["epoch"] == 2
    resumed = train(None, resume=folder, quiet=True)
    assert [r["Curriculum/Stage"] for r in records(resumed, "epoch")] == [1, 1, 2, 2]


def test_stages_with_worker_processes(tmp_path):
    config = tree()
    config["train"]["online"]["num_workers"] = 1
    result = train(config, output_dir=tmp_path, quiet=True)
    assert [r["Curriculum/Stage"] for r in records(result, "epoch")] == [1, 1, 2, 2]


def test_stages_need_evaluations_and_equal_spaces(tmp_path):
    config = tree()
    config["experiment"]["rollout"]["enabled"] = False
    with pytest.raises(ConfigError, match="stages are judged by evaluations"):
        train(config, output_dir=tmp_path, quiet=True)
    doors = "imitate.envs.masked_tasks:Doors-v0"
    config = tree(stages=[{"env_kwargs": {"mask": "observation"}, **ALWAYS}, {}])
    config["train"]["online"]["env"] = {
        "env_name": doors,
        "type": 2,
        "env_kwargs": {"mask": "none"},
    }
    with pytest.raises(EnvError, match="no observation .flat."):
        train(config, output_dir=tmp_path, quiet=True)
