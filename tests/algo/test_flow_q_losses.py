"""Losses and gradients of FQL, IFQL and QC equal those of their authors' code (tools/record/flow_q.py)."""

import pytest
import torch

from imitate.models import denoiser
from tests.algo.authors import as_ours, assert_gradients, recorded
from tests.tiny import tiny_algo

NAMES = {
    r"^modules_actor_onestep_flow/mlp/": "actor.",
    r"^modules_actor(_bc)?_flow/mlp/": "flow.",
    r"^modules_critic/value_net/": "critic.",
    r"^modules_target_critic/value_net/": "critic_target.",
    r"^modules_value/value_net/": "vf.",
    r"^(actor|flow)\.Dense_2": r"\1.last",
    r"^(actor|flow)\.Dense_": r"\1.mlp.layers.",
    "Dense_2": "head",
    "Dense_": "layers.",
    "LayerNorm_": "norms.",
    "kernel|scale": "weight",
    "/": ".",
}
"""Names of the authors' weights, in order of their replacement; there are two hidden layers."""
TRANSPOSED = ("actor.", "flow.")
CASES = {
    "fql": {"actor": {"distill_weight": 3.0}},
    "fql_normalized": {"actor": {"distill_weight": 10.0, "normalize_q": True}},
    "ifql": {},
    "qc_fql": {"actor": {"distill_weight": 3.0, "enabled": True}, "n_step": 2},
    "qc": {"flow": {"num_candidates": 3}, "n_step": 2},
}
VALID = 4 / 6
"""Share of the batch's chunks that no end of an episode cuts short; of their steps it is 10 / 12."""
LOSSES = {
    "fql": {
        "Critic_Loss": ("critic/critic_loss", 2.0),
        "Flow_Loss": ("actor/bc_flow_loss", 1.0),
        "Distillation_Loss": ("actor/distill_loss", 1.0),
    },
    "ifql": {
        "Critic_Loss": ("critic/critic_loss", 1.0),
        "Vf_Loss": ("value/value_loss", 1.0),
        "Flow_Loss": ("actor/actor_loss", 1.0),
    },
    "qc": {
        "Critic_Loss": ("critic/critic_loss", 2.0 / VALID),
        "Flow_Loss": ("actor/bc_flow_loss", 12 / 10),
    },
}
"""The authors' losses under our names, with the factor of ours: critics are summed here, in FQL and QC averaged there;
means are here over the valid chunks and steps of QC, there over all."""


@pytest.fixture(scope="module")
def below():
    """Recorded numbers by the beginning of their name."""
    return recorded("flow_q.npz")


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_the_authors(case, below, worlds, monkeypatch):
    algo_name, section = case.split("_")[0], CASES[case]
    flow = {"layer_dims": [5, 4], "num_steps": 3, **section.get("flow", {})}
    actor = {"actor": {"layer_dims": [5, 4], **section.get("actor", {})}}
    section = {
        **{"discount": 0.9, "critic": {"layer_dims": [5, 4]}},
        **({} if algo_name == "ifql" else actor),
        **{key: value for key, value in section.items() if key == "n_step"},
        "flow": flow,
    }
    algo = tiny_algo(algo_name, "train.max_grad_norm=null", obs={"s": 3}, action=2, algo=section)
    algo.nets.double().load_state_dict(as_ours(below(f"{case}/params/"), algo, NAMES, TRANSPOSED))
    draws = list(below(f"{case}/draws/").values())
    for place, name in (
        (torch, "randn_like"),
        (torch, "rand_like"),
        (denoiser, "fill_normal"),
    ):
        monkeypatch.setattr(place, name, lambda like, *_: draws.pop(0).reshape(like.shape))

    numbers = below("batch/")
    length = 2 if algo_name == "qc" else 1
    batch = {
        **{"obs": {"s": numbers["observations"]}, "next_obs": {"s": numbers["next_observations"]}},
        **{"actions": numbers["actions"][:, 0], "chunk": numbers["actions"].flatten(1)},
        **{"chunk_mask": numbers["valid"], "valid": numbers["valid"][:, -1]},
        **{"rewards": numbers["rewards"], "discounts": 0.9**length * numbers["masks"]},
        **{"goal_obs": None, "weight": None},
    }
    info = worlds.gradients(algo, batch)
    losses = below(f"{case}/losses/")
    factors = {}
    for name, (theirs, factor) in LOSSES[algo_name].items():
        assert info[name] == pytest.approx(factor * losses[theirs].item(), rel=1e-5), name
        factors[name.split("_")[0].lower()] = factor
    if "Actor_Loss" in info:  # theirs contains the flow's loss
        own = losses["actor/actor_loss"] - losses["actor/bc_flow_loss"]
        assert info["Actor_Loss"] == pytest.approx(own.item(), rel=1e-5)
    wanted = as_ours(below(f"{case}/gradients/"), algo, NAMES, TRANSPOSED)
    assert_gradients(algo, wanted, lambda name: factors.get(name.split(".")[0], 1.0))
