"""One policy for two tasks of Meta-World, evaluated in both."""

import json

from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile
from imitate.policy.checkpoint import load_checkpoint
from imitate.run_folder import find_checkpoint
from imitate.simulation.collect import collect
from imitate.simulation.demonstrate import Plan

TASKS = ("button-press-v3", "reach-v3")


def run(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def test_a_policy_is_evaluated_in_each_of_its_tasks_with_its_instruction(tmp_path):
    data = []
    for name in TASKS:
        env_meta = {"env_name": f"metaworld:{name}", "type": 2, "env_kwargs": {}}
        collect(tmp_path / f"{name}.hdf5", Plan(env_meta, noise=0.0), num=1)
        with DatasetFile(tmp_path / f"{name}.hdf5") as file:
            assert file.control_freq == 80  # Meta-World's own, not said by env_kwargs
        data.append({"path": str(tmp_path / f"{name}.hdf5"), "key": name})
    settings = {
        "train.data": data,
        "observation.modalities.obs.low_dim": ["hand_pos", "goal", "lang_emb"],
        "algo.actor_layer_dims": [8],
        "experiment.epoch_every_n_steps": 1,
        "experiment.rollout.enabled": False,
    }
    given = [
        text for key, value in settings.items() for text in ("--set", f"{key}={json.dumps(value)}")
    ]
    out = ("--epochs", "1", "--output-dir", str(tmp_path / "runs"))
    run("train", "--config", "metaworld/bc", *out, "--quiet", *given)
    report = tmp_path / "report.json"
    options = ("--env", "all", "--episodes", "2", "--horizon", "3", "--workers", "1")
    run("eval", "--agent", str(tmp_path / "runs/metaworld_bc"), *options, "--json", str(report))
    played = json.loads(report.read_text())["evaluations"]
    assert [one["env"] for one in played] == list(TASKS)
    assert [one["episodes"] for one in played] == [2, 2]
    learned = load_checkpoint(find_checkpoint(tmp_path / "runs/metaworld_bc"))["environments"]
    assert [env["lang"] for env in learned] == ["press the button", "reach the goal"]
