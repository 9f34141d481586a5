"""Defaults of the algorithms: robomimic's where it has the key, else the paper's."""

import json

import pytest

from imitate import load_config
from imitate.config.data_needs import DataNeeds, Returns, Sequences, Subgoals, Transitions

DEFAULTS = {
    "act": """
        algo.chunk.size=100 algo.chunk.execute=100 algo.transformer.embed_dim=512
        algo.transformer.feedforward_dim=3200 algo.vae.latent_dim=32 algo.vae.kl_weight=10.0
        train.seq_length=100""",
    "gl": """
        algo.subgoal_horizon=10 algo.ae.planner_layer_dims=[300,400] algo.vae.enabled=true
        algo.vae.latent_dim=16 algo.vae.kl_weight=1.0
        algo.optim_params.goal_network.learning_rate.initial=1e-4""",
    "hbc": """
        algo.mode="separate" algo.actor_use_random_subgoals=false algo.subgoal_update_interval=10
        algo.planner.subgoal_horizon=10 algo.latent_subgoal.enabled=false
        algo.latent_subgoal.prior_correction={"enabled":false,"num_samples":100}
        algo.planner.vae.enabled=true algo.planner.vae.latent_dim=16 algo.actor.rnn.enabled=true
        algo.actor.rnn.horizon=10 train.seq_length=10
        observation.actor.modalities.goal.low_dim=[]""",
    "iql": """
        algo.optim_params.critic.learning_rate.initial=1e-4
        algo.optim_params.vf.learning_rate.initial=1e-4
        algo.optim_params.actor.learning_rate.initial=1e-4
        algo.optim_params.actor.regularization.L2=0.0 algo.discount=0.99 algo.target_tau=0.01
        algo.vf_quantile=0.9 algo.actor.net.type="gaussian"
        algo.actor.net.common.std_activation="softplus" algo.actor.net.common.low_noise_eval=true
        algo.actor.net.common.use_tanh=false algo.actor.net.gaussian.init_last_fc_weight=0.001
        algo.actor.net.gaussian.init_std=0.3 algo.actor.net.gaussian.fixed_std=false
        algo.actor.net.gmm.num_modes=5 algo.actor.net.gmm.min_std=1e-4
        algo.actor.layer_dims=[300,400] algo.actor.max_gradient_norm=null algo.critic.ensemble.n=2
        algo.critic.layer_dims=[300,400] algo.critic.use_huber=false
        algo.critic.max_gradient_norm=null algo.adv.clip_adv_value=null algo.adv.beta=1.0
        algo.adv.use_final_clip=true train.obs_normalization=null""",
    "iris": """
        algo.value_planner.num_samples=100 algo.value_planner.planner.subgoal_horizon=10
        algo.value_planner.planner.vae.enabled=true algo.value_planner.value.actor.enabled=false
        algo.value_planner.value.critic.ensemble.n=2
        algo.value_planner.value.critic.ensemble.weight=0.75
        algo.value_planner.value.discount=0.99 algo.value_planner.value.target_tau=0.005
        algo.actor.rnn.enabled=true""",
    "rlpd": "train.online.enabled=true train.online.demo_ratio=0.5 train.online.update_ratio=20",
    "td3_bc": """
        algo.optim_params.critic.learning_rate.initial=3e-4
        algo.optim_params.critic.start_epoch=-1 algo.optim_params.critic.end_epoch=-1
        algo.optim_params.actor.learning_rate.initial=3e-4 algo.alpha=2.5 algo.discount=0.99
        algo.n_step=1 algo.target_tau=0.005 algo.infinite_horizon=false algo.critic.use_huber=false
        algo.critic.max_gradient_norm=null algo.critic.value_bounds=null algo.critic.ensemble.n=2
        algo.critic.ensemble.weight=1.0 algo.critic.layer_dims=[256,256] algo.actor.update_freq=2
        algo.actor.noise_std=0.2 algo.actor.noise_clip=0.5 algo.actor.layer_dims=[256,256]
        train.obs_normalization="mean_std" """,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_robomimic_or_of_the_paper(name):
    tree = load_config({"algo_name": name}).to_dict()
    for line in DEFAULTS[name].split():
        path, _, value = line.partition("=")
        found = tree
        for key in path.split("."):
            found = found[key]
        assert json.loads(json.dumps(found)) == json.loads(value), path


KEYS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
RNN = {"rnn": {"enabled": True, "burn_in": 3}}
ONE_STEP = Transitions(discount=0.99, n_step=1)


@pytest.mark.parametrize(
    ("name", "section", "part", "wanted"),
    [
        ("cal_ql", {"discount": 0.5}, "returns", Returns(0.5, continue_truncated=True)),
        ("dac", {}, "environment_rewards", False),
        ("gl", {}, "subgoals", Subgoals(KEYS, 10)),
        ("iris", {}, "subgoals", Subgoals(KEYS, 10)),
        ("iris", {}, "transitions", ONE_STEP),
        ("rebrac", {}, "transitions", Transitions(0.99, 1, True, False)),
        ("sac", {}, "sequences", None),
        ("sac", RNN, "sequences", Sequences(length=6, burn_in=3)),
        ("sqil", {}, "environment_rewards", False),
    ],
)
def test_what_it_asks_of_the_data(name, section, part, wanted):
    train = {} if name == "iris" else {"seq_length": 6}
    config = load_config({"algo_name": name, "algo": section, "train": train})
    assert getattr(config.algo.data_needs(config), part) == wanted


def test_all_that_an_algorithm_of_transitions_asks_of_the_data():
    section = {"discount": 0.9, "n_step": 3, "infinite_horizon": True}
    config = load_config({"algo_name": "iql", "algo": section, "train": {"seq_length": 6}})
    needs = DataNeeds(Transitions(0.9, 3, False, True), observed_steps=1)
    assert config.algo.data_needs(config) == needs
    framed = config.with_overrides({"train.frame_stack": 3})
    assert framed.algo.data_needs(framed).observed_steps == 3
