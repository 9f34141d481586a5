"""Promises of every algorithm, shown for the ready configurations in one pass each."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.algo.base.hierarchy import Hierarchy
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo, tiny_batch

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs").rglob("*.json"))
# Those of papers: tests/scripts/test_paper_configs.py.
CONFIGS = [path for path in FILES if not {"schema", "paper"} & set(path.parts)]
SIZES = {
    **{"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10},
    **{"hand_pos": 3, "gripper": 1, "object_pos": 3, "object_quat": 4},
    **{"object2_pos": 3, "object2_quat": 4, "goal": 3},
    **{"flat": 11, "skill": 5, "observation": 10, "desired_goal": 3},
}
IMAGE = (3, 48, 48)
AC_DIM = 7
PLANNERS = ("gl",)  # they do not act
MOST_UPDATES = 6
"""Updates after which every trainable weight has moved; most need one, actors that wait for critics more."""


def name_of(path):
    return path.relative_to(ROOT / "configs").with_suffix("").as_posix()


def structure(node):
    """Keys that decide how a configuration computes; those of one algorithm for several tasks share it."""
    if not isinstance(node, dict):
        return node
    ignored = {"$schema", "experiment", "data", "output_dir", "num_epochs", "batch_size", "seed"}
    kept = node.keys() - ignored - {"learning_rate"}
    return {key: structure(value) for key, value in node.items() if key in kept}


GOALS = ("gcbc", "gcivl", "gciql", "hiql", "crl")
QUICK = (
    *("act/act", "airl/airl_cartpole", "bc_ensemble/bc_ensemble", "bcq/bcq"),
    *("cal_ql/cal_ql", "causal_bc/causal_bc"),
    *("dac/dac_pendulum", "dqn/dqn_cartpole", "flow_policy/flow_policy", "fql/fql", "gl/gl"),
    *("dsrl/dsrl", "ibrl/ibrl"),
    *("iql/iql_recurrent", "iris/iris", "ppo/ppo_recurrent", "robosuite/lift/vq_bet"),
    *("sac/sac_mbpo_pendulum", "td3/td3_pendulum", "tqc/tqc_pendulum"),
)
FAST = (
    *("a2c/a2c_cartpole", "act/act_image", "awac/awac", "bc/bc_transformer_rotary"),
    *("bc_ensemble/bc_ensemble_hypernetwork",),
    *("bcq/bcq_distributional", "cql/cql", "ddpg/ddpg_pendulum"),
    *("diffusion_policy/diffusion_policy", "diffusion_policy/diffusion_policy_transformer"),
    *("dt/dt", "gail/gail_cartpole", "hbc/hbc", "iql/iql", "mbrl/mbrl", "mbrl/mbrl_pendulum"),
    *(
        "metaworld/bc_frozen_image",
        "merlin/merlin_recall",
        "ppg/ppg_cartpole",
        "ppo_bc/ppo_bc",
        "rebrac/rebrac",
        "residual/residual",
    ),
    *("rlpd/rlpd", "robosuite/lift/bc_gaussian", "robosuite/lift/bc_transformer_gmm"),
    *("robosuite/lift/bc_vae", "robosuite/lift/rlpd", "robosuite/lift/sac"),
    *("robosuite/lift/td3_bc_mixed", "robosuite/stack/hbc", "sac/sac_recurrent"),
    *(
        "ifql/ifql",
        "qc/qc",
        "qc/qc_fql",
        "reinflow/reinflow",
        "sqil/sqil_pendulum",
        "taac/taac_pendulum",
        "mdq/mdq_pendulum",
    ),
    *("tdmpc2/tdmpc2", "tdmpc2/tdmpc2_pendulum"),
    *("muzero/muzero_cartpole", "muzero/muzero_pendulum"),
    *(f"ogbench/{name}" for name in GOALS),
)
"""Configurations that together execute every branch that all of them do; the others run nightly."""
NARROW = {"algo.actor.layer_dims": [32, 32], "algo.critic.layer_dims": [32, 32]}
CHEAPER = {
    **dict.fromkeys(GOALS[1:], NARROW),
    "gcbc": {"algo.actor.layer_dims": [32, 32]},
    "crl": {**NARROW, "algo.critic.latent_dim": 8},
    "bcq": {"algo.critic.num_action_samples_rollout": 10},
    "diffusion_policy": {
        "algo.ddpm.num_inference_timesteps": 4,
        "algo.unet.down_dims": [16, 32],
        "algo.unet.diffusion_step_embed_dim": 32,
        "algo.transformer.embed_dim": 32,
    },
    "hbc": {"algo.actor.rnn.hidden_dim": 32},
    **dict.fromkeys(
        ("ifql", "qc"),
        {
            **{"algo.flow.num_candidates": 3, "algo.flow.num_steps": 2},
            **{"algo.flow.layer_dims": [64, 64], "algo.critic.layer_dims": [64, 64]},
        },
    ),
    "iris": {
        "algo.actor.rnn.hidden_dim": 32,
        "algo.value_planner.num_samples": 10,
        "algo.value_planner.value.action_sampler.actor_layer_dims": [64, 64],
    },
    "mbrl": {
        **{"algo.planner.population": 12, "algo.planner.elites": 3},
        **{"algo.planner.iterations": 2, "algo.planner.horizon": 5},
    },
    "muzero": {
        **{"algo.search.simulations": 4, "algo.search.candidates": 4, "algo.target_simulations": 2},
        **{"algo.unroll_steps": 2, "algo.n_step": 2, "algo.latent_dim": 16},
        **{"algo.layer_dims": [16], "algo.encoder_layer_dims": [16]},
    },
    "tdmpc2": {
        **{"algo.planner.population": 12, "algo.planner.elites": 8, "algo.policy_plans": 1},
        **{"algo.planner.iterations": 2, "algo.latent_dim": 16},
        **{"algo.layer_dims": [16, 16], "algo.encoder_layer_dims": [16]},
    },
}
"""Smaller networks, fewer samples and steps of a search or a denoising take the same branches."""


def cases():
    """A configuration of each structure: those of the table always run, the others nightly."""
    representatives, seen = [], set()
    # A structure's case is the one of the table, if there is one.
    for path in sorted(CONFIGS, key=lambda path: name_of(path) not in {*QUICK, *FAST}):
        text = json.dumps(structure(json.loads(path.read_text())), sort_keys=True)
        if text not in seen:
            representatives.append(path)
        seen.add(text)
    marks = {**dict.fromkeys(QUICK, pytest.mark.quick), **dict.fromkeys(FAST, ())}
    names = {name_of(path): path for path in representatives}
    return [
        pytest.param(path, id=name, marks=marks.get(name, pytest.mark.nightly))
        for name, path in names.items()
    ]


def algo_of(path, device="cpu", seed=0):
    """A new algorithm of a configuration; the same weights on each device."""
    torch.manual_seed(seed)
    config = load_config(path)
    changes = {"experiment.epoch_every_n_steps": 10, **CHEAPER.get(config.algo_name, {})}
    rgb = config.observation.get("encoder", {}).get("rgb")  # hierarchies have none of their own
    if rgb is not None and rgb.obs_randomizer_class == "CropRandomizer":
        crop = {"crop_height": 44, "crop_width": 44}
        changes["observation.encoder.rgb.obs_randomizer_kwargs"] = crop
    if rgb is not None and rgb.core_kwargs.get("backbone_class") == "DINOv2":
        # The frozen trunk is not what is learned.
        tiny = {"image_size": 42, "width": 64, "depth": 2, "heads": 2}
        backbone = {**rgb.core_kwargs["backbone_kwargs"], **tiny}
        changes["observation.encoder.rgb.core_kwargs.backbone_kwargs"] = backbone
    config = config.with_overrides(changes)
    keys = config.observation.modality_of("obs")
    shapes = {key: IMAGE if key.endswith("image") else (SIZES[key],) for key in keys}
    algo = algo_factory(config.algo_name, config, shapes, AC_DIM, device)
    if config.algo_name == "reinflow":  # it trains this policy, and acts as it
        seen = {key: shape[0] for key, shape in shapes.items()}
        base = tiny_algo("flow_policy", obs=seen, action=AC_DIM, seed=seed)
        algo.base.adopt(checkpoint_dict(base, env_metadata={}, shape_metadata={}), algo.preprocess)
    return algo


def update(algo, seed, epoch):
    algo.set_train()
    batch = algo.process_batch_for_training(tiny_batch(algo, seed=seed))
    info = algo.train_on_batch(batch, epoch)
    assert "Loss" in info
    return info


def observation(algo, batch_size=None, seed=0):
    rng = np.random.default_rng(seed)
    lead = () if batch_size is None else (batch_size,)
    return {
        key: rng.integers(256, size=(*lead, *shape), dtype=np.uint8)
        if algo.preprocess.modalities[key] == "rgb"
        else rng.normal(size=(*lead, *shape))
        for key, shape in algo.preprocess.raw_shapes.items()
    }


def prepared(algo, batch_size, seed):
    raw = observation(algo, batch_size, seed)
    return algo.preprocess.prepare_obs({key: torch.as_tensor(raw[key]) for key in raw})


def goal(algo, obs):
    """An observation as the goal, for a policy that has one."""
    return {key: obs[key] for key in algo.goal_shapes} or None


def weights(algo):
    """All weights and buffers, their moving averages too."""
    algo.set_eval()  # in which the averages act
    parts = {"nets": algo.nets, "active": algo.active_nets}
    return {
        f"{part}.{name}": value.clone()
        for part, nets in parts.items()
        for name, value in nets.state_dict().items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


def test_every_algorithm_has_a_case_that_always_runs():
    assert len(CONFIGS) >= 100
    fast = {name_of(path) for path in CONFIGS} & {*QUICK, *FAST}
    assert fast == {*QUICK, *FAST}
    of = {name_of(path): json.loads(path.read_text())["algo_name"] for path in CONFIGS}
    assert {of[name] for name in fast} == set(of.values())


@pytest.mark.slow("four algorithms and ten updates; those that denoise take two seconds")
@pytest.mark.parametrize("path", cases())
def test_contract(path, tmp_path, subtests):
    """Three algorithms and a few updates show all of it; each part is reported on its own."""
    algo, twin = algo_of(path), algo_of(path)
    stages = (1, 1, *[algo.global_config.train.num_epochs] * MOST_UPDATES)
    with subtests.test("an update moves every trainable weight and stays finite"):
        first = {name: p.detach().clone() for name, p in algo.nets.named_parameters()}
        still = {name for name, p in algo.nets.named_parameters() if p.requires_grad}
        torch.manual_seed(1)
        for number in range(MOST_UPDATES):
            info = update(algo, number, stages[number])
            now = dict(algo.nets.named_parameters())
            still = {name for name in still if torch.equal(now[name], first[name])}
            if number >= 2 and not still:
                break
        assert still == set()
        assert all(torch.isfinite(value).all() and value.dim() == 0 for value in info.values())
        assert not any(value.requires_grad for value in info.values())
        assert all(isinstance(value, float) for value in algo.log_info(info).values())
        assert all(torch.isfinite(p).all() for p in algo.nets.parameters())
    with subtests.test("the same seed gives the same weights"):
        torch.manual_seed(1)
        for again in range(number + 1):
            update(twin, again, stages[again])
        assert_same(weights(algo), weights(twin))
    with subtests.test("a restored algorithm continues as the one that was saved"):
        other = algo_of(path, seed=7)
        other.deserialize(algo.serialize())
        for one in (algo, other):
            torch.manual_seed(3)
            for later in (8, 9):
                update(one, later, stages[-1])
        assert_same(weights(algo), weights(other))
    algo.set_eval()
    with subtests.test("validation changes nothing"):
        before = weights(algo)
        batch = algo.process_batch_for_training(tiny_batch(algo))
        assert torch.isfinite(algo.train_on_batch(batch, 1, validate=True)["Loss"])
        assert_same(before, weights(algo))
    if path.parent.name in PLANNERS:
        return
    with subtests.test("actions have the right shape, and each episode of a batch is its own"):
        episodes_are_apart(algo)
    with subtests.test("a checkpoint acts like the algorithm it came from"):
        acts_like_its_checkpoint(algo, tmp_path / "model.pth")
    with subtests.test("a cut plan is not executed, and the past stays known"):
        plans_are_cut(algo)


def plans(algo):
    """If the actions of a step may have been decided at an earlier one."""
    actor = algo.actor if isinstance(algo, Hierarchy) else algo
    how = actor.execution
    planned = how is not None and (how.execute > 1 or how.temporal_ensemble is not None)
    return planned or isinstance(algo, Hierarchy)


def episodes_are_apart(algo):
    """Resetting one row leaves the other rows as they were."""
    steps = [prepared(algo, 5, seed) for seed in range(4)]

    def run(reset_at):
        torch.manual_seed(0)
        state, actions = algo.initial_state(5), []
        for number, obs in enumerate(steps):
            if number == reset_at:
                state = algo.reset_state(state, torch.tensor([False, True, False, False, False]))
            with torch.no_grad():
                action, state, _ = algo.act(obs, state, goal(algo, obs))
            actions.append(action)
        return torch.stack(actions)

    undisturbed, reset = run(None), run(2)
    assert undisturbed.shape == (4, 5, AC_DIM)
    torch.testing.assert_close(undisturbed[:, [0, 2, 3, 4]], reset[:, [0, 2, 3, 4]])
    algo.reset()
    for step in range(3):
        obs = prepared(algo, 1, step)
        action = algo.get_action(obs, goal(algo, obs))
        assert action.shape == (1, AC_DIM)
        assert not action.requires_grad
        assert action.isfinite().all()


def acts_like_its_checkpoint(algo, file):
    limits = {"action_low": [-1.0] * AC_DIM}
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata=limits), file)
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=file)
    assert ckpt["algo_name"] == algo.global_config.algo_name
    assert json.loads(ckpt["config"])["algo_name"] == ckpt["algo_name"]
    assert ckpt["format_version"] == 1
    algo.reset()
    for step in range(12 if plans(algo) else 3):
        obs = observation(algo, seed=step)
        torch.manual_seed(step)
        action = policy(obs, goal(algo, obs))
        torch.manual_seed(step)
        raw = {key: torch.as_tensor(value).unsqueeze(0) for key, value in obs.items()}
        ready = algo.preprocess.prepare_obs(raw)
        expected = algo.preprocess.unnormalize_actions(algo.get_action(ready, goal(algo, ready)))[
            0
        ].numpy()
        # Large layers of a loaded policy add in another order.
        np.testing.assert_allclose(action, np.maximum(expected, -1.0), atol=1e-5)
        assert action.dtype == np.float64


def plans_are_cut(algo):
    """At step 2 a policy that plans decides anew; one that does not acts as if nothing had been cut."""
    policy = RolloutPolicy(algo)

    def act(seed):
        seen = observation(algo, seed=seed)
        return policy(seen, goal(algo, seen))

    def second(cut, first=0):
        torch.manual_seed(0)
        policy.start_episode()
        policy.cut_plan()  # nothing to cut yet
        act(first)
        if cut:
            policy.cut_plan()
        torch.manual_seed(1)
        return act(1)

    near = algo.config.get("near", None)
    searches = "plan" in algo.initial_state(1).get("policy", {})  # from where the last search ended
    searches &= near is None or max(near.share, near.evaluation) < 1  # not at the policy's
    cut, uncut = second(cut=True), second(cut=False)
    if plans(algo) or searches:
        assert not np.allclose(cut, uncut)
    else:
        np.testing.assert_array_equal(cut, uncut)
    if algo.frame_stack > 1:
        assert not np.allclose(cut, second(cut=True, first=2))


AVERAGED = "algo.ema.enabled=true"
ATOMS = "algo.critic.distributional.enabled=true algo.critic.value_bounds=[0.0,2.0]"
CHUNK = "algo.chunk.enabled=true algo.chunk.size=4 algo.chunk.execute=2 train.seq_length=4"
STATES = [
    ("bc", f"{AVERAGED} {CHUNK}"),
    ("bcq", "algo.actor.enabled=true"),
    ("bcq", f"{ATOMS} algo.action_sampler.gmm.enabled=true"),
    ("cql", "algo.actor.bc_start_steps=3"),
    ("dt", ""),
    ("hbc", "algo.actor.ema.enabled=true"),
    ("iris", ""),
    ("rlpd", "algo.actor.update_freq=3"),
    ("sac", 'algo.dynamics={"members":2,"layer_dims":[8]} algo.imagination.start_updates=2'),
    ("td3_bc", ""),
    ("vq_bet", AVERAGED),
]
"""Kinds of state beside the weights: warm starts, turns of networks, averages, codes, parts."""


@pytest.mark.later
@pytest.mark.parametrize(("name", "changes"), STATES)
@pytest.mark.parametrize("stop", [2, 3])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name, changes, stop):
    """Two updates an epoch, so that one stops within an epoch and one between two."""

    def run(algo, first, last):
        for number in range(first, last):
            torch.manual_seed(number)
            update(algo, number, number // 2 + 1)
        return algo

    def new(seed):
        return tiny_algo(name, *changes.split(), action=2, seed=seed)

    file = io.BytesIO()
    torch.save(run(new(0), 0, stop).serialize(), file)
    file.seek(0)
    resumed = new(1)
    resumed.deserialize(torch.load(file))
    whole = run(new(0), 0, 6)
    assert_same(weights(whole), weights(run(resumed, stop, 6)))
    assert whole.counters == resumed.counters
