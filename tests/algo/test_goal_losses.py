"""Losses and gradients of goal-conditioned algorithms equal those of OGBench's code (tools/record/ogbench_goals.py)."""

import pytest
import torch

from tests.algo.authors import as_ours, assert_gradients, recorded
from tests.tiny import tiny_algo

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
def below():
    """Recorded numbers by the beginning of their name."""
    return recorded("ogbench_goals.npz")


def named_as_ours(tensors, algo):
    value = "vf" if algo.global_config.algo_name in ("gciql", "crl") else "value"
    last = {"VALUE": value, "TARGET": "value_target.mlps"}
    return as_ours(tensors, algo, {**NAMES, **last}, ("actor.", "high_actor."))


def made(case, below):
    algo_name = case.split("_")[0]
    section = {"actor": {"layer_dims": [5, 4]}, "discount": 0.9, **CASES[case]}
    if algo_name != "gcbc":
        section["critic"] = {"layer_dims": [5, 4], **({"latent_dim": 3} if "crl" in case else {})}
    algo = tiny_algo(algo_name, obs={"s": 3}, goal=("s",), action=2, algo=section)
    weights = named_as_ours(below(f"{case}/params/"), algo)
    missing = algo.nets.double().load_state_dict(weights, strict=False).missing_keys
    assert all(name.startswith("value_target.rep.") for name in missing)  # not used
    numbers = below("batch/")
    return algo, {
        **{name: {"s": numbers[theirs]} for name, theirs in STATES.items()},
        **({"goal_obs": {"s": numbers["high_actor_goals"]}} if case == "hiql" else {}),
        "actions": numbers["actions"],
        "rewards": numbers["rewards"],
        "discounts": 0.9 * numbers["masks"],
        "weight": None,
    }


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_the_authors(case, below, worlds):
    algo, batch = made(case, below)
    info = worlds.gradients(algo, batch)
    losses = below(f"{case}/losses/")
    value_loss = "Vf_Loss" if "gciql" in case else "Value_Loss"
    names = {**LOSSES, "value/value_loss": value_loss}
    compared = {names[name]: loss.item() for name, loss in losses.items() if name in names}
    assert len(compared) == {"gcbc": 1, "gcivl": 2, "crl_ddpgbc": 2}.get(case, 3)
    for name, loss in compared.items():
        assert info[name] == pytest.approx(loss, rel=1e-5), name
    wanted = named_as_ours(below(f"{case}/gradients/"), algo)
    assert_gradients(algo, wanted)


@pytest.mark.parametrize("case", ["gcivl", "hiql", "gciql_ddpgbc"])
def test_targets_follow_a_little(case, below):
    algo, batch = made(case, below)
    (target,) = algo.targets
    followed = algo.nets[algo.targets[target]]
    before = [weight.clone() for weight in algo.nets[target].parameters()]
    algo.train_on_batch(batch, 1)
    after = list(algo.nets[target].parameters())
    for old, new, online in zip(before, after, followed.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.005 * (online - old))


def test_logged_errors_of_actions_are_differences(below):
    algo, batch = made("gcbc", below)
    info = algo.train_on_batch(batch, 1, validate=True)
    off = algo.actor(batch["obs"], batch["goal_obs"]).detach() - batch["actions"]
    assert info["Action_MSE"] == pytest.approx(off.square().mean().item())
    assert info["Action_Error"] == pytest.approx(off.abs().mean().item())
