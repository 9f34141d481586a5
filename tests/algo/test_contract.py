"""What every algorithm promises, checked for every ready configuration."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.algo.hierarchy import Hierarchy
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint, save_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(
    path
    for path in (ROOT / "configs").rglob("*.json")
    # Those of papers: tests/scripts/test_paper_configs.py.
    if not {"schema", "paper"} & set(path.parts)
)
SHAPES = {
    "robot0_eef_pos": (3,),
    "robot0_eef_quat": (4,),
    "robot0_gripper_qpos": (2,),
    "object": (10,),
    "hand_pos": (3,),
    "gripper": (1,),
    "object_pos": (3,),
    "object_quat": (4,),
    "object2_pos": (3,),
    "object2_quat": (4,),
    "goal": (3,),
    "flat": (11,),
    "observation": (10,),
    "desired_goal": (3,),
    "agentview_image": (3, 84, 84),
    "robot0_eye_in_hand_image": (3, 84, 84),
    "corner2_image": (3, 84, 84),
}
AC_DIM = 7
PLANNERS = ("gl",)  # they do not act


def algo_of(path, device, seed=0):
    """A new algorithm of a configuration; the same weights on each device."""
    torch.manual_seed(seed)
    config = load_config(path).with_overrides({"experiment.epoch_every_n_steps": 10})
    rgb = config.observation.get("encoder", {}).get("rgb")  # hierarchies have none of their own
    if rgb is not None and rgb.core_kwargs.get("backbone_class") == "DINOv2":
        # The frozen trunk is not what is learned: a tiny one on fewer patches takes a tenth of the time.
        tiny = {"size": "tiny", "image_size": 42}
        backbone = {**rgb.core_kwargs["backbone_kwargs"], **tiny}
        config = config.with_overrides(
            {"observation.encoder.rgb.core_kwargs.backbone_kwargs": backbone}
        )
    shapes = {key: SHAPES[key] for key in config.observation.modality_of("obs")}
    return algo_factory(config.algo_name, config, shapes, AC_DIM, device)


def make_algo(path, seed=0):
    return algo_of(path, "cpu", seed)


def raw_batch(algo, size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    train = algo.global_config.train
    steps = train.frame_stack - 1 + train.seq_length

    def obs():
        return {
            key: torch.randint(256, (size, steps, *shape), generator=generator, dtype=torch.uint8)
            if algo.preprocess.modalities[key] == "rgb"
            else torch.randn(size, steps, *shape, generator=generator)
            for key, shape in algo.preprocess.raw_shapes.items()
        }

    subgoals = {key: obs()[key][:, 0] for key in algo.subgoal_shapes}
    wanted = algo.algo_config.data_needs(algo.global_config).subgoals
    if wanted is not None and wanted.every:
        subgoals = {k: torch.stack([v] * wanted.horizon, dim=1) for k, v in subgoals.items()}
    return {
        "obs": obs(),
        "next_obs": obs(),
        "subgoals": subgoals,
        "actions": torch.rand(size, steps, AC_DIM, generator=generator) * 2 - 1,
        "next_actions": torch.rand(size, AC_DIM, generator=generator) * 2 - 1,
        "rewards": torch.rand(size, steps, generator=generator),
        "n_step_rewards": torch.rand(size, generator=generator),
        "discounts": torch.full((size,), 0.99),
        "returns": torch.rand(size, steps, generator=generator),
        "step": torch.arange(steps).expand(size, -1),
        "log_prob": -torch.rand(size, steps, generator=generator),
        "advantages": torch.rand(size, steps, generator=generator),
        "values": torch.rand(size, steps, generator=generator),
        "dones": torch.zeros(size, steps),
        "pad_mask": torch.ones(size, steps, dtype=torch.bool),
        "index": torch.arange(size),
    }


def update(algo, steps=3, epoch=1):
    algo.set_train()
    for step in range(steps):
        batch = algo.process_batch_for_training(raw_batch(algo, seed=step))
        info = algo.train_on_batch(batch, epoch)
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


@pytest.fixture(params=CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def path(request):
    return request.param


@pytest.fixture(
    params=[path for path in CONFIGS if path.parent.name not in PLANNERS],
    ids=lambda path: str(path.relative_to(ROOT / "configs")),
)
def acting(request):
    return request.param


def test_there_are_configurations():
    assert len(CONFIGS) >= 6


def test_an_update_moves_every_trainable_weight_and_stays_finite(path):
    algo = make_algo(path)
    before = {name: p.detach().clone() for name, p in algo.nets.named_parameters()}
    for epoch in (1, algo.global_config.train.num_epochs):  # the first and the last stage
        info = update(algo, epoch=epoch)
        assert "Loss" in info
    assert all(torch.isfinite(value).all() and value.dim() == 0 for value in info.values())
    assert not any(value.requires_grad for value in info.values())
    still = [
        name
        for name, p in algo.nets.named_parameters()
        if p.requires_grad and torch.equal(before[name], p)
    ]
    assert still == []
    assert all(torch.isfinite(p).all() for p in algo.nets.parameters())


def test_validation_changes_nothing(path):
    algo = make_algo(path)
    algo.set_eval()
    before = {name: value.clone() for name, value in algo.nets.state_dict().items()}
    info = algo.train_on_batch(algo.process_batch_for_training(raw_batch(algo)), 1, validate=True)
    assert torch.isfinite(info["Loss"])
    assert all(torch.equal(before[name], value) for name, value in algo.nets.state_dict().items())


def test_log_info_gives_floats(path):
    algo = make_algo(path)
    log = algo.log_info(update(algo, steps=1))
    assert all(isinstance(value, float) for value in log.values())


def test_the_same_seed_gives_the_same_weights(path):
    first, second = make_algo(path), make_algo(path)
    for algo in (first, second):
        torch.manual_seed(1)
        update(algo)
    for a, b in zip(first.nets.parameters(), second.nets.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_actions_have_the_right_shape(acting, batch_size):
    algo = make_algo(acting)
    algo.set_eval()
    obs = algo.preprocess.prepare_obs(
        {k: torch.as_tensor(v) for k, v in observation(algo, batch_size).items()}
    )
    for _ in range(3):
        action = algo.get_action(obs)
        assert action.shape == (batch_size, AC_DIM)
        assert not action.requires_grad
        assert action.isfinite().all()


def test_serialize_round_trip_continues_identically(path):
    algo = make_algo(path)
    update(algo)
    other = make_algo(path, seed=7)
    other.deserialize(algo.serialize())
    for a in (algo, other):
        torch.manual_seed(3)
        update(a, steps=2)
    for a, b in zip(algo.nets.parameters(), other.nets.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_acts_like_the_algo_it_came_from(acting, tmp_path):
    algo = make_algo(acting)
    update(algo)
    file = tmp_path / "model.pth"
    save_checkpoint(
        checkpoint_dict(algo, env_metadata={}, shape_metadata={"action_low": [-1.0] * AC_DIM}), file
    )
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=file)
    assert ckpt["algo_name"] == algo.global_config.algo_name
    assert json.loads(ckpt["config"])["algo_name"] == ckpt["algo_name"]
    assert load_checkpoint(file)["format_version"] == 1
    algo.set_eval()
    for step in range(12):
        obs = observation(algo, seed=step)
        torch.manual_seed(step)
        action = policy(obs)
        torch.manual_seed(step)
        prepared = algo.preprocess.prepare_obs(
            {k: torch.as_tensor(v).unsqueeze(0) for k, v in obs.items()}
        )
        expected = algo.preprocess.unnormalize_actions(algo.get_action(prepared))[0].numpy()
        # Large layers of a loaded policy add in another order.
        np.testing.assert_allclose(action, np.maximum(expected, -1.0), atol=1e-5)
        assert action.dtype == np.float64


def test_a_cut_plan_is_not_executed_and_the_past_stays_known(acting):
    """At step 2 a policy that plans decides anew; one that does not acts as if nothing had been cut."""
    algo = make_algo(acting)
    algo.set_eval()
    policy = RolloutPolicy(algo)

    def second(cut, first=0):
        torch.manual_seed(0)
        policy.start_episode()
        policy.cut_plan()  # nothing to cut yet
        policy(observation(algo, seed=first))
        if cut:
            policy.cut_plan()
        torch.manual_seed(1)
        return policy(observation(algo, seed=1))

    actor = algo.actor if isinstance(algo, Hierarchy) else algo
    waits = actor.execution is not None and (
        actor.execution.execute > 1 or actor.execution.temporal_ensemble is not None
    )
    searches = "plan" in algo.initial_state(1).get("policy", {})  # from where the last search ended
    if waits or searches or isinstance(algo, Hierarchy):
        assert not np.allclose(second(cut=True), second(cut=False))
    else:
        np.testing.assert_array_equal(second(cut=True), second(cut=False))
    if algo.frame_stack > 1:
        assert not np.allclose(second(cut=True), second(cut=True, first=2))


def test_each_episode_of_a_batch_is_its_own(acting):
    """Resetting one row leaves the other rows as they were."""
    algo = make_algo(acting)
    algo.set_eval()
    steps = [
        algo.preprocess.prepare_obs(
            {k: torch.as_tensor(v) for k, v in observation(algo, 3, seed=s).items()}
        )
        for s in range(4)
    ]

    def run(reset_at):
        torch.manual_seed(0)
        state = algo.initial_state(3)
        actions = []
        for number, obs in enumerate(steps):
            if number == reset_at:
                state = algo.reset_state(state, torch.tensor([False, True, False]))
            with torch.no_grad():
                action, state, _ = algo.act(obs, state)
            actions.append(action)
        return actions

    undisturbed, reset = run(None), run(2)
    for a, b in zip(undisturbed, reset, strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]])
