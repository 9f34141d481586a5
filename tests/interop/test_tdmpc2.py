"""A model that TD-MPC2's authors' code made (tools/record/tdmpc2.py): it acts and has losses as there."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import CheckpointError
from imitate.functional.sampling import RowGenerator
from imitate.interop.tdmpc2 import from_tdmpc2
from imitate.policy.checkpoint import converted, load_checkpoint
from tests.calling import call

FOLDER = Path(__file__).parent / "fixtures/tdmpc2"
FOUND = {name: torch.from_numpy(x) for name, x in np.load(FOLDER / "numbers.npz").items()}
PLAN = {"horizon": 3, "population": 32, "elites": 8, "iterations": 3}


class Recorded(RowGenerator):
    """The random numbers of the authors' search, in order."""

    def __new__(cls):
        return super().__new__(cls, torch.zeros(1, dtype=torch.int64))

    def __init__(self):
        super().__init__(torch.zeros(1, dtype=torch.int64))
        self.waiting = [FOUND[name] for name in sorted(FOUND) if name.startswith("draw_")]

    def normal(self, shape):
        drawn = self.waiting.pop(0)
        assert drawn.numel() == torch.Size(shape).numel()
        return drawn.view(*shape)

    uniform = normal


def theirs():
    return torch.load(FOLDER / "model.pt", weights_only=True)["model"]


def ours(monkeypatch):
    """The algorithm with the settings of the recorded search."""
    algo = from_tdmpc2({"model": theirs()}).algo
    more = {"algo.planner": {"type": "mppi", **PLAN}, "algo.policy_plans": 4}
    monkeypatch.setattr(algo, "config", algo.global_config.with_overrides(more).algo)
    algo.set_eval()
    return algo


def test_it_acts_as_there_with_the_same_random_numbers(monkeypatch):
    algo, generator = ours(monkeypatch), Recorded()
    state = algo.initial_state(1)
    for obs, action in zip(FOUND["obs"], FOUND["actions"], strict=True):
        found, state, _ = algo.act({"state": obs[None]}, state, generator=generator)
        torch.testing.assert_close(found[0], action, rtol=0, atol=1e-5)
    assert not generator.waiting


def test_its_losses_are_those_of_the_authors(monkeypatch):
    algo = ours(monkeypatch)
    window = {name: FOUND[f"window_{name}"].transpose(0, 1) for name in ("obs", "action")}
    rewards, ends = (FOUND[f"window_{k}"].squeeze(-1).T for k in ("reward", "terminated"))
    raw = {
        "obs": {"state": window["obs"][:, :1]},
        "actions": window["action"][:, :1],
        "index": torch.arange(6),
        "following": {
            "obs": {"state": window["obs"][:, 1:]},
            "actions": window["action"],
            "rewards": rewards,
            "ends": ends,
            "mask": torch.ones(6, 3, dtype=torch.bool),
        },
    }
    noise = [FOUND[f"noise_{name}"].transpose(0, 1) for name in ("target", "policy")]
    monkeypatch.setattr(
        "imitate.algo.tdmpc2.draw_normal", lambda mean, std: mean + std * noise.pop(0)
    )
    monkeypatch.setattr(torch, "randn_like", lambda mean: noise.pop(0))
    monkeypatch.setattr(torch, "randperm", lambda n, device=None: torch.arange(n))
    batch = algo.process_batch_for_training(raw)
    loss, info, zs = algo.model_loss(batch)
    expected = {"Consistency": "consistency", "Reward": "reward", "Value": "value"}
    for name, other in {**expected, "Ends": "termination"}.items():
        torch.testing.assert_close(
            info[f"{name}_Loss"], FOUND[f"{other}_loss"], rtol=1e-4, atol=1e-6
        )
    torch.testing.assert_close(loss, FOUND["total_loss"], rtol=1e-4, atol=1e-6)
    algo._gradient_step("model", loss)
    policy, _, scale = algo.policy_loss(batch, zs)
    torch.testing.assert_close(scale, FOUND["pi_scale"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(policy, FOUND["pi_loss"], rtol=1e-2, atol=1e-3)


def test_the_command_line_converts_it(tmp_path):
    target = tmp_path / "ours.pth"
    call("convert-checkpoint --to imitate --rename flat=state", FOLDER / "model.pt", target)
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=target)
    assert ckpt["algo_name"] == "tdmpc2" and policy.algo.config.discount == 0.99
    policy.start_episode()
    assert policy({"flat": np.zeros(5, dtype=np.float32)}).shape == (2,)


def older(weights):
    """The same weights in the older layout, in which the members' parameters are numbered."""
    kept = {k: v for k, v in weights.items() if "Qs" not in k}
    kinds = ("weight", "bias", "ln.weight", "ln.bias")
    for new, old in (("_Qs.params", "_Qs.params"), ("_target_Qs_params", "_target_Qs.params")):
        for number in range(10):
            name = f"{new}.{number // 4}.{kinds[number % 4]}"
            kept[f"{old}.{number}"] = weights[name]
    return kept


def test_both_layouts_give_the_same_weights():
    one, other = (from_tdmpc2(w).algo.nets.state_dict() for w in (theirs(), older(theirs())))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_several_tasks_become_a_one_hot_observation():
    weights = theirs()
    dim = 3
    weights["_task_emb.weight"] = torch.randn(4, dim)
    wider = [name for name in weights if name.endswith(".0.weight")]
    for name in wider:
        if "Qs.module" not in name and "detach" not in name:
            weights[name] = torch.cat([weights[name], weights[name][..., :dim]], dim=-1)
    algo = from_tdmpc2(weights).algo
    assert algo.obs_shapes == {"state": (5,), "task": (4,)}
    obs = {"state": torch.zeros(1, 5), "task": torch.tensor([[0.0, 0.0, 1.0, 0.0]])}
    row = weights["_task_emb.weight"][2]
    torch.testing.assert_close(algo.task_of(obs)[0], row / row.norm().clamp(min=1.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"_encoder.rgb.2.weight": torch.zeros(1)}, "images .* has no counterpart"),
        ({"_action_masks": torch.tensor([[1.0, 0.0]])}, "different numbers of action dimensions"),
        ({"_reward.0.weight": torch.zeros(16, 3)}, "unexpected content"),
    ],
)
def test_what_has_no_counterpart_is_named(changes, words):
    with pytest.raises(CheckpointError, match=f"TD-MPC2's authors.*{words}"):
        converted({"model": {**theirs(), **changes}})
    assert load_checkpoint(FOLDER / "model.pt")["algo_name"] == "tdmpc2"
