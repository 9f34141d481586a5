"""Losses and gradients of goal-conditioned algorithms equal those of OGBench's code (tools/record/ogbench_goals.py)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import tiny_algo

FIXTURE = Path(__file__).parent / "fixtures" / "ogbench_goals.npz"
STATES = {
    "obs": "observations",
    "next_obs": "next_observations",
    "goal_obs": "actor_goals",
    "value_goals": "value_goals",
    "low_goals": "low_actor_goals",
    "high_targets": "high_actor_targets",
}
NAMES = {
    r"^modules_actor/": "actor.",
    r"^modules_low_actor/": "actor.",
    r"^modules_high_actor/": "high_actor.",
    r"^modules_critic/value_net/": "critic.mlps.",
    r"^modules_critic/": "critic.",
    r"^modules_value/value_net/": "VALUE.mlps.",
    r"^modules_value/": "VALUE.",
    r"^modules_target_critic/value_net/": "critic_target.mlps.",
    r"^modules_target_value/value_net/": "TARGET.",
    r"^modules_goal_rep/layers_0/": "value.rep.",
    "actor_net/Dense_": "mlp.layers.",
    "mean_net": "last",
    "Dense_2": "head",
    "Dense_": "layers.",
    "LayerNorm_": "norms.",
    "kernel|scale": "weight",
    "/": ".",
}
"""Names of the authors' weights, in order of their replacement; there are two hidden layers."""
LOSSES = {
    "actor/actor_loss": "Actor_Loss",
    "low_actor/actor_loss": "Actor_Loss",
    "high_actor/actor_loss": "High_Actor_Loss",
    "critic/critic_loss": "Critic_Loss",
    "critic/contrastive_loss": "Critic_Loss",
    "value/contrastive_loss": "Vf_Loss",
}
CASES = {
    "gcbc": {},
    "gcivl": {"alpha": 2.0},
    "gciql_ddpgbc": {},
    "gciql_awr": {"actor_loss": "awr", "alpha": 3.0},
    "hiql": {"rep_dim": 3},
    "crl_ddpgbc": {},
    "crl_awr": {"actor_loss": "awr", "alpha": 3.0},
}


@pytest.fixture(scope="module")
def recorded():
    """Numbers by name."""
    with np.load(FIXTURE) as file:
        shapes, values = json.loads(file["shapes"].item()), file["values"]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(values, ends[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def below(recorded, start):
    return {
        name.removeprefix(start): torch.from_numpy(value).double()
        for name, value in recorded.items()
        if name.startswith(start)
    }


def ours(name, algo_name):
    for pattern, word in NAMES.items():
        name = re.sub(pattern, word, name)
    value = "vf" if algo_name in ("gciql", "crl") else "value"
    return name.replace("VALUE", value).replace("TARGET", "value_target.mlps")


def as_ours(tensors, algo):
    """The authors' weights or gradients under our names and in our layout."""
    shapes = {name: weight.shape for name, weight in algo.nets.named_parameters()}
    found = {}
    for name, value in tensors.items():
        own = ours(name, algo.global_config.algo_name)
        plain = own.startswith(("actor.", "high_actor."))
        found[own] = (value.T if plain and value.dim() == 2 else value).reshape(shapes[own])
    return found


def made(case, recorded):
    algo_name = case.split("_")[0]
    section = {"actor": {"layer_dims": [5, 4]}, "discount": 0.9, **CASES[case]}
    if algo_name != "gcbc":
        section["critic"] = {"layer_dims": [5, 4], **({"latent_dim": 3} if "crl" in case else {})}
    algo = tiny_algo(algo_name, obs={"s": 3}, goal=("s",), action=2, algo=section)
    weights = as_ours(below(recorded, f"{case}/params/"), algo)
    missing = algo.nets.double().load_state_dict(weights, strict=False).missing_keys
    assert all(name.startswith("value_target.rep.") for name in missing)  # not used
    numbers = below(recorded, "batch/")
    return algo, {
        **{name: {"s": numbers[theirs]} for name, theirs in STATES.items()},
        **({"goal_obs": {"s": numbers["high_actor_goals"]}} if case == "hiql" else {}),
        "actions": numbers["actions"],
        "rewards": numbers["rewards"],
        "discounts": 0.9 * numbers["masks"],
        "weight": None,
    }


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_the_authors(case, recorded, worlds):
    algo, batch = made(case, recorded)
    for optimizer in algo.optimizers.values():
        optimizer.param_groups[0]["lr"] = 0.0
    info = algo.train_on_batch(batch, 1)
    losses = below(recorded, f"{case}/losses/")
    value_loss = "Vf_Loss" if "gciql" in case else "Value_Loss"
    names = {**LOSSES, "value/value_loss": value_loss}
    compared = {names[name]: loss.item() for name, loss in losses.items() if name in names}
    assert len(compared) == {"gcbc": 1, "gcivl": 2, "crl_ddpgbc": 2}.get(case, 3)
    for name, loss in compared.items():
        assert info[name].item() == pytest.approx(loss, rel=1e-5), name
    wanted = as_ours(below(recorded, f"{case}/gradients/"), algo)
    trained = {
        name: weight.grad for name, weight in algo.nets.named_parameters() if "_target" not in name
    }
    assert trained.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(trained[name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize("case", ["gcivl", "hiql", "gciql_ddpgbc"])
def test_targets_follow_a_little(case, recorded):
    algo, batch = made(case, recorded)
    (target,) = algo.targets
    followed = algo.nets[algo.targets[target]]
    before = [weight.clone() for weight in algo.nets[target].parameters()]
    algo.train_on_batch(batch, 1)
    after = list(algo.nets[target].parameters())
    for old, new, online in zip(before, after, followed.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.005 * (online - old))
