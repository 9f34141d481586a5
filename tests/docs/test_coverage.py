"""The list of what other toolkits' references name: no row is missing, and each test and place of a proof exists.

``python -m benchmarks.covered`` tries that each test fails with its replacement.
"""

import json
import re

import pytest

from tests.docs.pages import ROOT
from tests.loading import load

LISTED = json.loads((ROOT / "docs/coverage.json").read_text())
MODULES = """
actor_critic_algorithm actor_critic_loss agent agent_helpers algorithm algorithm_interface async_unroller bc_algorithm
causal_bc_algorithm config containers data_transformer ddpg_algorithm decoding_algorithm diayn_algorithm dqn_algorithm
dynamic_action_repeat_agent dynamics_learning_algorithm encoding_algorithm entropy_target_algorithm
functional_particle_vi_algorithm generator goal_generator handcrafted_algorithm hypernetwork_algorithm icm_algorithm
iql_algorithm lagrangian_reward_weight_algorithm mbrl_algorithm mcts_algorithm mcts_models mdq_algorithm
merlin_algorithm mi_estimator monet_algorithm muzero_algorithm muzero_representation_learner oac_algorithm
off_policy_algorithm on_policy_algorithm one_step_loss particle_vi_algorithm planning_algorithm ppg_algorithm
ppo_algorithm ppo_loss predictive_representation_learner prior_actor qrsac_algorithm reward_learning_algorithm
rl_algorithm rnd_algorithm sac_algorithm sarsa_algorithm taac_algorithm td_loss trac_algorithm vae vq_vae
"""
MEMBERS = """
action_spec after_train_iter after_update calc_loss calc_loss_offline finish_train get_metrics get_step_metrics
has_multidim_reward is_rl load_offline_replay_buffer observation_spec on_policy path predict_step
preprocess_experience reward_weights rollout_info_spec rollout_step set_on_policy set_path set_reward_weights
summarize_metrics summarize_reward summarize_rollout summarize_train train_from_replay_buffer train_from_unroll
train_iter train_step train_step_offline unroll
"""
PROOFS, GROUPS = LISTED["proofs"], LISTED["groups"]


def test_no_module_and_no_member_is_missing():
    modules = [*GROUPS["alf_modules"]["rows"]]
    assert modules == MODULES.split() and len(modules) == 59
    members = {word for name in GROUPS["alf_members"]["rows"] for word in re.findall(r"\w+", name)}
    assert {*MEMBERS.split()} - members == set()
    assert [*GROUPS] == ["alf_modules", "alf_members", "srl", "ding"]


def test_each_row_has_a_proof_or_says_what_is_not_here():
    rows = [row for group in GROUPS.values() for row in group["rows"].values()]
    assert all(row.get("by") or row.get("lacks") for row in rows)
    assert {name for row in rows for name in row.get("by", ())} == {*PROOFS}


@pytest.mark.parametrize("name", PROOFS)
def test_the_place_and_the_test_of_a_proof_exist(name):
    proof = PROOFS[name]
    assert (ROOT / proof["at"]).read_text().count(proof["old"]) == 1 and proof["old"] != proof[
        "new"
    ]
    file, _, test = proof["test"].partition("::")
    found = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
    assert test.partition("[")[0] in found


def test_the_page_has_each_row(monkeypatch):
    page = load("scripts/site_coverage.py").coverage_page()
    for group in GROUPS.values():
        assert f"## {group['title']}\n" in page
        assert all(f"| `{name}` | " in page for name in group["rows"])
    assert all(f"`{proof['test']}`" in page for proof in PROOFS.values())
    assert page.count("| not here |") == sum(
        "by" not in r for g in GROUPS.values() for r in g["rows"].values()
    )
    assert "coverage.md" in (ROOT / "mkdocs.yml").read_text()
