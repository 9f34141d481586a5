"""Settings that do not go together are refused, by a message that names the key and says what to do."""

import pytest

from imitate.config.readiness import check_trainable
from imitate.errors import ConfigError
from tests.tiny import tiny_algo

RNN = "algo.rnn.enabled=true"
CHUNK = "algo.chunk.enabled=true algo.chunk.size=4 algo.chunk.execute=2"
TRANSFORMER = "algo.transformer.enabled=true algo.transformer.context_length=4"
FRAMES = "train.frame_stack=4"
FRAME, HORIZON = "train.frame_stack", "algo.horizon.observation_horizon"
FUTURE = f"{TRANSFORMER} {FRAMES} train.seq_length=4 algo.transformer.pred_future_acs=true"
ATOMS = "algo.critic.distributional.enabled=true"
OFFLINE = "train.online.enabled=false"
MEMORY = f"{RNN} train.seq_length=4 algo.rnn.burn_in=3"
LATENT = "algo.latent_subgoal.enabled=true"
ACTOR = "observation.actor.modalities"
DYNAMICS = 'algo.dynamics={"members":2,"layer_dims":[8]}'
TWO_CHOICES = "algo.num_choices=2"
REFUSED = [
    ("act", "algo.chunk.enabled=false", "algo.chunk.enabled is false"),
    ("act", "train.seq_length=3", "too short for algo.chunk.size 4: set it to 4"),
    ("act", "algo.chunk.execute=5", "5 steps of execution"),
    ("act", "algo.transformer.embed_dim=18", "make it a multiple of 4"),
    ("airl", f"{RNN} train.seq_length=4", "airl has no recurrent form"),
    ("bc", "algo.gmm.enabled=true algo.gaussian.enabled=true", "do not go together"),
    ("bc", f"{RNN} algo.vae.enabled=true train.seq_length=10", "together"),
    ("bc", RNN, "set train.seq_length to 10"),
    ("bc", f"{RNN} train.seq_length=10 train.frame_stack=2", "frame_stack"),
    ("bc", f"{RNN} train.seq_length=10 algo.rnn.kwargs.bidirectional=true", "bidirectional"),
    ("bc", "algo.transformer.enabled=true", "set it to 10"),
    ("bc", "algo.vae.enabled=true algo.vae.prior.is_conditioned=true", "set learn to true"),
    ("bc", f"{CHUNK} train.seq_length=3", "windows of 4 steps: set it to 4"),
    ("bc", f"{CHUNK} train.seq_length=8 {RNN}", "windows of 13 steps"),
    ("bc", f"{TRANSFORMER} train.frame_stack=3", "transformer.context_length 4 observations"),
    ("bc", f"{TRANSFORMER} {FRAMES} algo.transformer.num_heads=3", "does not divide"),
    ("bc", FUTURE.replace("seq_length=4", "seq_length=1"), "learns the next 4 actions"),
    ("bc", f"{FUTURE} algo.transformer.rotary_embedding=true", "set train.frame_stack to 1"),
    ("bc", f"{FUTURE} {CHUNK} algo.chunk.size=3", "algo.chunk.size is 3"),
    ("bcq", "algo.action_sampler.vae.enabled=false", "neither vae nor gmm"),
    (
        *("bc_ensemble", "algo.particles.rule=minmax algo.particles.of=weights"),
        "as many inputs as a member has weights",
    ),
    (
        *("bc_ensemble", "algo.particles.rule=gpvi algo.particles.of=weights"),
        "gpvi is for weights that are made from noise",
    ),
    ("bcq", ATOMS, "value_bounds is null"),
    ("bcq", f"{ATOMS} algo.critic.value_bounds=[2.0,1.0]", "the first must be below"),
    ("cal_ql", "algo.infinite_horizon=true", "infinite_horizon is true"),
    ("causal_bc", "train.seq_length=4 algo.instrument_lag=2", "set it to 3"),
    ("cql", "algo.actor.net.type=gmm", "set it to 'gaussian'"),
    (
        *("cql", "algo.critic.deterministic_backup=false algo.critic.num_action_samples=4"),
        "set num_action_samples to 1",
    ),
    ("dac", "train.online.demo_ratio=0.0", "demo_ratio"),
    ("dac", OFFLINE, "demo_ratio"),
    ("dac", "algo.n_step=3", "n_step is 3"),
    ("dac", 'observation.modalities.goal.low_dim=["s"]', "sees no goals"),
    ("diffusion_policy", "train.frame_stack=1", "set both to the same number"),
    ("diffusion_policy", "train.seq_length=8", "set it to 16"),
    ("diffusion_policy", "algo.horizon.action_horizon=16", "more actions than the 15"),
    ("diffusion_policy", "algo.ddim.enabled=true", "are both true"),
    ("diffusion_policy", "algo.transformer.enabled=true", "exactly one network"),
    ("diffusion_policy", "algo.ddpm.num_inference_timesteps=200", "than num_train_timesteps"),
    ("diffusion_policy", "algo.horizon.prediction_horizon=15", "multiple of 2"),
    ("dqn", "algo.num_choices=0", "take sac or td3"),
    ("dt", "train.frame_stack=3", "set both to the same number"),
    ("dt", "train.seq_length=2", "set it to 1"),
    ("dt", "algo.transformer.num_heads=3", "does not divide"),
    ("flow_policy", "train.frame_stack=1", "set both to the same number"),
    ("flow_policy", "train.seq_length=8", "prediction_horizon 16: set it to 16"),
    (
        *("flow_policy", f"{FRAME}=3 {HORIZON}=3 train.seq_length=13"),
        "seq_length is 13, too short for",
    ),
    ("flow_policy", "algo.mlp.enabled=false", "exactly one network"),
    (
        *("flow_policy", f"{FRAME}=1 {HORIZON}=1 algo.prefix.max_delay=16"),
        "max_delay is 16, but a chunk has 16",
    ),
    (*("flow_policy", f"{FRAME}=3 {HORIZON}=3 algo.prefix.max_delay=14"), "set it to 13 or less"),
    ("gail", "train.frame_stack=2", r"frame_stack is 2.*gail sees single observations"),
    ("gl", "observation.modalities.subgoal.low_dim=[]", r"observation\.modalities\.subgoal"),
    ("gl", "experiment.rollout.enabled=true", r"rollout\.enabled.*gl learns no policy that acts"),
    ("hbc", f"{LATENT} algo.planner.vae.enabled=false", "vae.enabled"),
    ("hbc", f'{ACTOR}.goal.low_dim=["s"]', r"actor\.modalities\.goal.*leave the list empty"),
    ("hbc", "observation.planner.modalities.subgoal.low_dim=[]", "lists nothing to predict"),
    (
        *("hbc", f'{ACTOR}.obs.low_dim=[] {ACTOR}.obs.rgb=["s"]'),
        "'s' is 'low_dim' for one part of the policy but 'rgb' for another",
    ),
    ("hbc", "train.seq_length=1", r"algo\.actor\.rnn\.horizon"),
    ("hbc", "algo.mode=both", r"algo\.mode"),
    (
        *("hbc", 'observation={"modalities":{"obs":{"low_dim":["s"]}}}'),
        r"observation\.modalities: unknown key",
    ),
    ("ibrl", OFFLINE, "ibrl learns online"),
    ("ibrl", "algo.critic.subset=6", "algo.critic.subset is 6, but there are 5 critics"),
    (
        "iql",
        "train.gradient_accumulation=2",
        "gradient_accumulation is 2.*enlarge train.batch_size",
    ),
    ("iql", "train.precision=bf16", "too coarse"),
    ("iql", "train.hdf5_load_next_obs=false", "leave it out"),
    ("iql", f"{MEMORY} algo.rnn.burn_in=1 algo.n_step=2", "n_step is 2, but a memory"),
    ("iql", f"{MEMORY} algo.rnn.burn_in=1 algo.infinite_horizon=true", "infinite_horizon is true"),
    ("iris", LATENT, "latent_subgoal.enabled: the value network evaluates states"),
    ("iris", "train.frame_stack=2", "train.frame_stack is 2"),
    ("iris", "algo.value_planner.planner.vae.enabled=false", r"planner\.vae\.enabled is false"),
    (
        *("iris", 'observation.value_planner.value.modalities.obs.low_dim=["s","t"]'),
        "'t' is not part of the subgoal",
    ),
    (
        *("iris", f"{ATOMS}".replace("algo.", "algo.value_planner.value.")),
        r"algo\.value_planner\.value\.critic\.value_bounds is null",
    ),
    ("mbrl", "train.frame_stack=2", "train.frame_stack is 2"),
    ("mbrl", 'observation.modalities.obs.rgb=["camera_image"]', "camera_image are not vectors"),
    ("mbrl", 'observation.modalities.goal.low_dim=["s"]', "rewards without goals"),
    ("mbrl", "train.hdf5_load_next_obs=false", "learns from next observations"),
    ("ppo", f"{RNN} train.seq_length=1", "train.seq_length is 1, so a recurrent policy"),
    (
        *("ppo", f"{RNN} train.seq_length=40 train.online.collect_steps=20"),
        r"train.seq_length is 40.*collect_steps 20",
    ),
    ("ppo_bc", f"{RNN} train.seq_length=4", "ppo_bc has no recurrent form"),
    ("residual", OFFLINE, "residual learns online"),
    ("rlpd", "algo.critic.subset=11", "algo.critic.subset is 11, but there are 10 critics"),
    ("rlpd", "algo.critic.ensemble.weight=0.5", "algo.critic.ensemble.weight is 0.5"),
    ("sac", "algo.actor.net.common.use_tanh=false", "use_tanh to true"),
    ("sac", "algo.actor.net.type=gmm", "set type to 'gaussian'"),
    ("sac", TWO_CHOICES, "num_choices is 2, but actions have 3 numbers"),
    ("sac", f"{TWO_CHOICES} algo.num_continuous=2", "do not sum to the 3 action dimensions"),
    ("sac", f"{MEMORY} train.seq_length=1", "train.seq_length is 1, so a recurrent policy"),
    ("sac", f"{MEMORY} train.frame_stack=2", "train.frame_stack is 2, but a recurrent policy"),
    ("sac", f"{MEMORY} {OFFLINE}", "burn_in is 3, which leaves none of the 4"),
    ("sqil", "train.online.demo_ratio=0.0", "demo_ratio"),
    ("sqil", OFFLINE, "demo_ratio"),
    ("sqil", "algo.n_step=3", "n_step is 3"),
    ("sqil", RNN, "algo.rnn"),
    ("tdmpc2", "algo.latent_dim=12", "12 is not a multiple of simplex_dim 8"),
    ("tdmpc2", "algo.policy_plans=512", "the planner has 512 candidates"),
    ("tdmpc2", "algo.policy_plans=0 algo.near.share=0.5", "policy_plans is 0"),
    ("tdmpc2", "algo.policy_plans=0 algo.near.evaluation=1", "near.evaluation is 1"),
    ("tdmpc2", "algo.weights.cloning=10", "there are no demonstrations"),
    ("tdmpc2", 'algo.task="lang_emb"', "lang_emb', which is not an observation"),
    ("tdmpc2", "train.online.hindsight.enabled=true", "need one goal"),
    ("tdmpc2", "train.gradient_accumulation=2", "enlarge train.batch_size"),
    ("tdmpc2", "train.precision=bf16", "too coarse"),
    ("tqc", "algo.critic.num_dropped=25", "num_dropped is 25, which leaves none of the 25"),
    ("tqc", "algo.critic.ensemble.weight=0.75", "weight is 0.75, but targets of tqc"),
    ("tqc", "algo.critic.value_bounds=[0,1]", "atoms of tqc are unbounded"),
    ("vq_bet", "algo.chunk.enabled=false", "algo.chunk.enabled is false"),
    ("vq_bet", "train.seq_length=3", "too short for algo.chunk.size 5: set it to 5"),
    ("vq_bet", "train.num_epochs=1", "leave none for the policy"),
    ("vq_bet", "algo.transformer.num_heads=3", "does not divide"),
    ("bc", 'observation.modalities.obs.mask=["a","b"]', "an action has one mask"),
    ("sac", f"{DYNAMICS} algo.n_step=3", "n_step is 3, but the transitions of algo.dynamics"),
    ("sac", f"{DYNAMICS} {RNN} train.seq_length=4", "algo.dynamics sees observations"),
    ("sac", f"{DYNAMICS} train.frame_stack=2", "train.frame_stack is 2, but algo.dynamics"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_what_does_not_go_together_is_refused(name, changes, words):
    with pytest.raises(ConfigError, match=words):
        check_trainable(tiny_algo(name, *changes.split(), action=3).global_config)
