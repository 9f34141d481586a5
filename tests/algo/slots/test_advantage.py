"""The condition of good actions: value targets, advantages, thresholds, guidance by hand; and a road of two halves."""

import numpy as np
import pytest
import torch

from imitate.algo.slots.advantage import (
    Advantage,
    Thresholds,
    conditioned,
    guided,
    outcome_value,
    with_outcome,
    without_condition,
)
from imitate.data import DatasetWriter, Episode, build_datasets
from imitate.errors import ConfigError
from imitate.models.observation import CONDITION_KEY
from tests.tiny import tiny_algo, tiny_config

ON = "algo.advantage.enabled=true"
NOW = "algo.advantage.warmup_updates=0"
SIZES = ("algo.advantage.max_steps=20", "algo.advantage.num_tasks=0", "algo.advantage.bins=5")


def slot_of(**settings) -> Advantage:
    changes = [f"algo.advantage.{key}={value}" for key, value in settings.items()]
    return tiny_algo("bc", ON, *SIZES, *changes).nets["advantage"]


def test_values_of_steps_to_success():
    """-left / 20 on the way to success, -1 in an episode that fails, and -1 however late success comes."""
    outcome = torch.tensor([[0.0, 1, 0], [5, 1, 0], [5, 0, 0], [40, 1, 1]])
    assert outcome_value(outcome, 20).tolist() == [0.0, -0.25, -1.0, -1.0]


def test_the_loss_divides_a_target_between_neighbouring_bins():
    """Bins -1, -.75, -.5, -.25, 0: -0.6 is 0.4 of the second and 0.6 of the third. The bins' logits are 0 to 4."""
    slot, logits = slot_of(), torch.arange(5.0).unsqueeze(0)
    log_p = logits[0] - torch.logsumexp(logits[0], 0)
    loss = slot.value_loss(logits, torch.tensor([-0.6]))
    assert float(loss) == pytest.approx(float(-(0.4 * log_p[1] + 0.6 * log_p[2])), rel=1e-5)


def test_advantages_over_four_steps_and_to_the_end():
    """Ahead: -4/20 - 0.3 + 0.6. Its last 3 steps: -3/20 + 0.6. A failure's last 3 steps: -1 + 0.6."""
    value, later = torch.full((3,), -0.6), torch.full((3,), -0.3)
    outcome = torch.tensor([[4.0, 1, 0], [3, 1, 0], [3, 0, 0]])
    found = slot_of(lookahead=4).advantages(value, later, outcome)
    torch.testing.assert_close(found, torch.tensor([0.1, 0.45, -0.4]))
    whole = slot_of(lookahead="null").advantages(value, None, outcome)
    torch.testing.assert_close(whole, torch.tensor([0.4, 0.45, -0.4]))


def test_the_threshold_of_a_task_is_the_quantile_of_its_own_advantages():
    """A quarter is good: the quantile 0.75 of 0..4 is 3, of 10..50 it is 40; a task without a sample keeps its own."""
    marks = Thresholds(3, positive=0.25)
    advantages = torch.tensor([0.0, 1, 2, 3, 4, 10, 20, 30, 40, 50])
    task = torch.tensor([0] * 5 + [2] * 5)
    marks.follow(advantages, task)
    assert marks.values.tolist() == [3.0, 0.0, 40.0]
    marks.follow(advantages + 1.0, task)  # the second batch counts as much as the first
    assert marks.values.tolist() == [3.5, 0.0, 40.5]
    assert marks.seen.tolist() == [2.0, 0.0, 2.0]


def test_conditions_by_threshold_correction_and_dropout():
    slot = slot_of(dropout=0.0, warmup_updates=3)
    slot.thresholds.values.fill_(0.5)
    advantages, task = torch.tensor([0.6, 0.4, 0.4]), torch.zeros(3, dtype=torch.long)
    outcome = torch.tensor([[1.0, 1, 0], [1, 1, 0], [1, 1, 1]])
    assert slot.conditions(advantages, task, outcome).sum() == 0  # the first updates
    slot.updates.fill_(4)
    assert slot.conditions(advantages, task, outcome).tolist() == [[1, 0], [0, 1], [1, 0]]
    often = slot_of(dropout=0.25)
    often.updates.fill_(1000)
    drawn = often.conditions(
        torch.ones(4000), torch.zeros(4000, dtype=torch.long), torch.zeros(4000, 3)
    )
    assert float(drawn.sum(-1).mean()) == pytest.approx(0.75, abs=0.03)


def test_tasks_are_counted_from_one_and_unknown_ones_are_zero():
    batch = {"obs": {"s": torch.zeros(2, 1, 3)}, "outcome": torch.zeros(2, 3)}
    assert with_outcome({}, batch, 1)["advantage"]["task"].tolist() == [0, 0]
    batch["task_id"] = torch.tensor([0, 4])
    assert with_outcome({}, batch, 1)["advantage"]["task"].tolist() == [1, 5]


def test_each_frame_has_the_condition_of_its_sample():
    algo = tiny_algo("flow_policy", ON, *SIZES)
    obs = {"s": torch.randn(3, 2, 3)}
    now = {"s": obs["s"][:, -1]}
    seen = {"obs": now, "later": None, "outcome": torch.zeros(3, 3), "task": torch.zeros(3).long()}
    found, _ = conditioned(algo, {"obs": obs, "advantage": seen}, learn=False)
    condition = found["obs"][CONDITION_KEY]
    assert condition.shape == (3, 2, 2) and torch.equal(condition[:, 0], condition[:, 1])


def test_guidance_goes_beyond_the_condition():
    assert guided(torch.tensor(1.0), torch.tensor(3.0), 1.5) == 4.0


@pytest.mark.parametrize("name", ["bc", "act", "flow_policy", "diffusion_policy"])
def test_a_policy_acts_under_the_condition_good(name):
    """Observations without a condition are those with (1, 0); its weights get gradients by training alone."""
    algo = tiny_algo(name, ON, NOW, *SIZES)
    algo.set_eval()
    obs = {"s": torch.randn(2, *[algo.frame_stack] * (algo.frame_stack > 1), 3)}
    encoder = next(m for m in algo.nets["policy"].modules() if hasattr(m, "obs_shapes"))
    good = {**obs, CONDITION_KEY: torch.tensor([1.0, 0.0]).expand(*obs["s"].shape[:-1], 2)}
    assert torch.equal(encoder(obs), encoder(good))
    assert not torch.equal(encoder(obs), encoder(without_condition(obs, algo.obs_shapes)))


def test_a_flow_follows_the_guided_velocity():
    algo = tiny_algo("flow_policy", ON, *SIZES, "algo.advantage.guidance=2.0")
    obs, noisy = {"s": torch.randn(2, 2, 3)}, torch.randn(2, 16, 1)
    good, free = (
        algo.policy(noisy, torch.full((2,), 50.0), algo.policy.condition(seen))
        for seen in (obs, without_condition(obs, algo.obs_shapes))
    )
    step = algo.denoising_steps(obs, None)[2]  # at time 2/4, with steps of 1/4
    torch.testing.assert_close(step(noisy), noisy + 0.25 * (2 * good - free))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bc", ["algo.rnn.enabled=true"], "set algo.rnn.enabled and"),
        ("act", ["algo.advantage.guidance=2.0"], "only flow_policy is guided"),
        ("hbc", ["algo.actor.advantage.enabled=true"], "no part of hbc supports it"),
    ],
)
def test_refusals(name, changes, words):
    on = [] if name == "hbc" else [ON]
    with pytest.raises(ConfigError, match=words):
        tiny_config(name, *on, *changes)


# ---- a road: each demonstrator is fast on one half and slow on the other, so that all of them take equally long


def drive(first: float, second: float, start: float) -> Episode:
    places, speeds = [start], []
    while places[-1] < 1.0:
        speeds.append(first if places[-1] < 0.5 else second)
        places.append(places[-1] + 0.04 * speeds[-1])
    s = np.array(places, dtype=np.float32)[:, None]
    rewards = np.zeros(len(speeds), dtype=np.float32)
    rewards[-1] = 1.0
    return Episode(
        obs={"s": s[:-1]},
        next_obs={"s": s[1:]},
        actions=np.array(speeds, dtype=np.float32)[:, None],
        rewards=rewards,
        terminals=rewards > 0,
        timeouts=np.zeros(len(speeds), dtype=bool),
        states=None,
        attrs={"success": True},
    )


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    path, random = tmp_path_factory.mktemp("road") / "road.hdf5", np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "road", "type": 4, "env_kwargs": {}}) as writer:
        for i in range(20):
            speeds = (1.0, 0.25) if i % 2 else (0.25, 1.0)
            writer.append_episode(drive(*speeds, random.uniform(0.0, 0.05)))
    return path


def speeds_after(road, *changes, updates=250):
    """Mean speed of the policy on each half of the road."""
    rates = ["algo.optim_params.policy.learning_rate.initial=0.003", "train.batch_size=64"]
    words = {"obs": {"s": 1}, "data": road, "hidden": [32]}
    config = tiny_config("bc", *rates, *changes, **words)
    dataset, _ = build_datasets(config)
    algo = tiny_algo("bc", *rates, *changes, **words)
    algo.set_train()
    random = np.random.default_rng(0)
    for _ in range(updates):
        batch = dataset.__getitems__(random.integers(len(dataset), size=64))[0]
        info = algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    algo.set_eval()
    s = torch.linspace(0.1, 0.9, 9).unsqueeze(-1)
    found = algo.act({"s": s}, algo.initial_state(9)).action[:, 0]
    return found[:4].mean().item(), found[5:].mean().item(), info


LEARN = (
    ON,
    "algo.advantage.warmup_updates=50",
    "algo.advantage.lookahead=4",
    "algo.advantage.positive=0.15",
    "algo.advantage.max_steps=65",
    "algo.advantage.num_tasks=0",
    "algo.advantage.optimizer.learning_rate.initial=0.01",
)


def test_a_policy_is_fast_on_both_halves_although_no_demonstration_is(road):
    plain, best = (speeds_after(road, *more)[:2] for more in ([], ["train.filter_best=0.25"]))
    assert max(plain) < 0.6 and min(best) < 0.6
    *fast, info = speeds_after(road, *LEARN)
    assert min(fast) > 0.85
    assert 0.05 < float(info["Advantage/Good"]) < 0.35
    assert float(info["Advantage/Value_Error"]) < 0.3


def test_validation_changes_nothing(road):
    algo = tiny_algo("bc", *LEARN, obs={"s": 1}, data=road)
    dataset, _ = build_datasets(tiny_config("bc", *LEARN, obs={"s": 1}, data=road))
    batch = algo.process_batch_for_training(dataset.__getitems__(np.arange(16))[0])
    before = {name: value.clone() for name, value in algo.nets.state_dict().items()}
    algo.set_eval()
    info = algo.train_on_batch(batch, 1, validate=True)
    assert {"Loss", "Advantage/Value_Loss"} <= set(info)
    assert all(torch.equal(before[name], value) for name, value in algo.nets.state_dict().items())


def test_corrections_and_failures_reach_the_batch(tmp_path):
    """A failed demo, whose second step was corrected. 4 steps after the first is the fifth; after the end the last."""
    path, one = tmp_path / "two.hdf5", drive(1.0, 1.0, 0.0)
    failed = drive(1.0, 1.0, 0.0)
    failed.attrs["success"] = False
    one.steps["interventions"] = np.zeros(len(one.actions), dtype=bool)
    failed.steps["interventions"] = np.arange(len(one.actions)) == 1
    with DatasetWriter(path, {"env_name": "road", "type": 4, "env_kwargs": {}}) as writer:
        writer.append_episode(one)
        writer.append_episode(failed)
    dataset, _ = build_datasets(tiny_config("bc", *LEARN, obs={"s": 1}, data=path))
    length = len(one.actions)
    batch = dataset.__getitems__(np.array([0, length - 2, length + 1]))[0]
    assert batch["outcome"].tolist() == [[length - 1, 1, 0], [1, 1, 0], [length - 2, 0, 1]]
    wanted = [one.obs["s"][4], one.obs["s"][-1], one.obs["s"][5]]
    np.testing.assert_array_equal(batch["later_obs"]["s"].numpy(), np.stack(wanted))
