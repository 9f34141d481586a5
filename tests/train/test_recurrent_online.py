"""Policies with a memory in whole trainings: they learn what the forgetful cannot, and go on where they stopped."""

import json

import numpy as np
import pytest
import torch

from imitate import load_config, policy_from_checkpoint
from imitate.checks.algo import check_algo
from imitate.config.ready_configs import bundled
from imitate.envs.memory_tasks import Recall
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.setup import resolve
from imitate.train.trainer import train

ROLLOUTS = "experiment.rollout.enabled=false"


def learn(name, tmp_path, *overrides):
    config = load_config(bundled(name), ["experiment.logging.log_tb=false", *overrides])
    return train(config, output_dir=tmp_path, quiet=True)


def answers(result, continuous):
    """Share of questions that the final policy answers right; half of the cues are of either kind."""
    policy, _ = policy_from_checkpoint(ckpt_path=result.run_dir / "checkpoints/last.pth")
    shown = {-1.0: [], 1.0: []}
    for seed in range(100):
        env = Recall(continuous)
        shown[float(env.reset(seed=seed)[0][0])].append((env, seed))
    envs, seeds = zip(*shown[-1.0][:20], *shown[1.0][:20], strict=True)
    seen = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    policy.start_episode()
    over = False
    while not over:
        actions = policy({"flat": seen}, batched_ob=True)
        chosen = actions if continuous else actions.argmax(-1)
        steps = [env.step(action) for env, action in zip(envs, chosen, strict=True)]
        seen, over = np.stack([step[0] for step in steps]), steps[0][2]
    return np.mean([step[4]["success"] for step in steps])


@pytest.mark.parametrize(
    ("name", "epochs", "continuous"),
    [("ppo/ppo_recurrent", 4, False), ("sac/sac_recurrent", 2, True)],
)
def test_who_remembers_answers_and_who_forgets_guesses(tmp_path, name, epochs, continuous):
    remembering = learn(name, tmp_path, ROLLOUTS, f"train.num_epochs={epochs}")
    assert answers(remembering, continuous) == 1.0
    forgetful = learn(name, tmp_path, ROLLOUTS, "train.num_epochs=1", "algo.rnn.enabled=false")
    # When it is asked, it sees the same in all episodes.
    assert answers(forgetful, continuous) == 0.5


def small(name, *overrides):
    """Trainings whose epochs are over with an episode, of 8 steps."""
    epoch = 64 if name.startswith("ppo") else 80
    online = {
        "ppo/ppo_recurrent": ["train.online.num_envs=2", "train.online.collect_steps=16"],
        "sac/sac_recurrent": ["train.online.num_envs=1", "train.online.warmup_steps=40"],
    }[name]
    return [ROLLOUTS, f"experiment.epoch_every_n_steps={epoch}", *online, *overrides]


@pytest.mark.parametrize("name", ["ppo/ppo_recurrent", "sac/sac_recurrent"])
@pytest.mark.parametrize("rnn_type", ["GRU", "LSTM"])
def test_a_resumed_run_ends_bit_equal(tmp_path, name, rnn_type):
    settings = small(name, f"algo.rnn.rnn_type={rnn_type}")
    whole = learn(name, tmp_path, *settings, "train.num_epochs=3")
    part = learn(name, tmp_path, *settings, "train.num_epochs=2")
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    first, second = (load_checkpoint(r.run_dir / "checkpoints/last.pth") for r in (whole, resumed))
    assert first["train_state"]["step"] == second["train_state"]["step"]
    for key, value in first["model"]["nets"].items():
        assert torch.equal(value, second["model"]["nets"][key]), key
    if name.startswith("sac"):
        memories = [
            torch.load(sorted((r.run_dir / "checkpoints").glob("memory_240.pt"))[0])["rows"]
            for r in (whole, resumed)
        ]
        for key in [f"memory/{part}" for part in ("hc" if rnn_type == "LSTM" else "h")]:
            assert memories[0][key].abs().sum() > 0
            assert torch.equal(memories[0][key], memories[1][key])


@pytest.mark.parametrize("name", ["ppo/ppo_recurrent", "sac/sac_recurrent"])
def test_all_contracts_hold(name):
    found = check_algo(resolve(load_config(bundled(name)), None, None))
    assert [finding.words for finding in found if finding.verdict != "ok"] == []


@pytest.mark.parametrize("name", ["ppo/ppo_recurrent", "sac/sac_recurrent"])
def test_workers_bring_the_states_along(tmp_path, name):
    result = learn(
        name,
        tmp_path,
        *small(name, "train.online.num_envs=2", "train.online.num_workers=1"),
        "train.num_epochs=2",
    )
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    last = [r for r in map(json.loads, lines) if r["kind"] == "epoch"][-1]
    assert last["Train/Updates"] > 0
    assert np.isfinite(last["Train/Loss"])
