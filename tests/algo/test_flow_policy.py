"""Flow policy: its loss, the times that its network gets, sampling, by stand-ins for the network."""

import pytest
import torch

from imitate.algo.base.execution import ChunkExecution
from imitate.algo.flow_policy import draw_times
from tests.tiny import tiny_algo

OBS = {"state": torch.zeros(1, 3)}


def make(*overrides):
    return tiny_algo("flow_policy", *overrides, obs={"state": 3}, action=2)


class StandIn(torch.nn.Module):
    """Answers with `answer(noisy, step)` and remembers what it was asked."""

    def __init__(self, algo, answer):
        super().__init__()
        self.encoder = algo.nets["policy"].encoder
        self.answer = answer
        self.asked, self.announced = [], None

    def condition(self, obs, goal=None):
        return self.encoder(obs, goal)

    def for_steps(self, steps, condition, given=None):
        self.announced = steps
        return lambda noisy, step: self(noisy, step, condition)

    def forward(self, noisy, step, condition, given=None):
        self.asked.append((noisy, step))
        return self.answer(noisy, step)


def loss_of(answer, *overrides, seed=2):
    """Loss of a network that answers so; the noise, the times and the chunk that it was made of; the network."""
    algo = make(*overrides)
    algo.set_train()
    network = algo.nets["policy"] = StandIn(algo, answer)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "obs": {"state": torch.randn(4, 17, 3, generator=generator)},
        "actions": torch.rand(4, 17, 2, generator=generator) - 0.5,
        "pad_mask": torch.ones(4, 17, dtype=torch.bool),
    }
    batch["pad_mask"][:, 3:] = False
    batch["actions"][:, 3:] = 77.0
    torch.manual_seed(seed)
    loss, info = algo._loss(algo.process_batch_for_training(batch))
    assert info["Loss"] is loss
    torch.manual_seed(seed)
    noise = torch.randn(4, 16, 2)
    time = draw_times(4, algo.algo_config.flow.time_density)
    return loss, noise, time, batch["actions"][:, :16], network


@pytest.mark.parametrize("constant", [0.0, 1.5, -0.5])
def test_the_loss_is_the_square_of_what_is_missing_to_the_velocity(constant):
    """(c - (a - z))^2, the mean over the three real steps. With c = 0 alone its sign would not show."""
    loss, noise, _, actions, _ = loss_of(lambda noisy, step: torch.full_like(noisy, constant))
    missing = (constant - (actions - noise))[:, :3]
    assert float(loss) == pytest.approx(float(missing.square().mean()), rel=1e-5)


def test_a_network_that_knows_the_velocity_has_no_loss():
    _, noise, _, actions, _ = loss_of(lambda noisy, step: noisy)
    loss, *_ = loss_of(lambda noisy, step: actions - noise)
    assert float(loss) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("density", ["uniform", "beta", "logit_normal"])
def test_the_network_sees_the_point_on_the_way_and_its_time_in_hundredths(density):
    zeros = lambda noisy, step: torch.zeros_like(noisy)  # noqa: E731
    _, noise, time, actions, network = loss_of(zeros, f"algo.flow.time_density={density}")
    ((noisy, step),) = network.asked
    torch.testing.assert_close(step, 100.0 * time)
    part = time.view(4, 1, 1)
    torch.testing.assert_close(noisy, (1 - part) * noise + part * actions)


def chunk_of(answer, *overrides, seed=3):
    """Chunk, the noise that it began with, and the network."""
    algo = make(*overrides)
    algo.set_eval()
    network = algo.ema.module["policy"] = StandIn(algo, answer)
    step = algo.act(OBS, algo.initial_state(1), generator=torch.Generator().manual_seed(seed))
    noise = torch.empty(1, 16, 2).normal_(generator=torch.Generator().manual_seed(seed))
    return step.extras["chunk"], noise[:, 1:], network


def test_the_flow_of_a_constant_velocity():
    """v = 0.5 for a time of 1 from the noise: noise + 0.5, whatever the number of steps."""
    half = lambda noisy, step: torch.full_like(noisy, 0.5)  # noqa: E731
    chunk, noise, _ = chunk_of(half, "algo.flow.num_inference_steps=7")
    torch.testing.assert_close(chunk, noise + 0.5)


@pytest.mark.parametrize(
    ("integrator", "asked", "factor"),
    # dx/dt = x in two steps of h = 1/2: Euler (1 + h)^2, Heun (1 + h + h^2 / 2)^2.
    [("euler", [0.0, 50.0], 2.25), ("heun", [0.0, 50.0, 50.0, 100.0], 2.640625)],
)
def test_the_integrator_and_its_times_by_hand(integrator, asked, factor):
    chunk, noise, network = chunk_of(
        lambda noisy, step: noisy,
        "algo.flow.num_inference_steps=2",
        f"algo.flow.integrator={integrator}",
    )
    torch.testing.assert_close(chunk, factor * noise)
    assert [step for _, step in network.asked] == asked
    assert network.announced == [0.0, 50.0, 100.0]


def test_the_same_generator_gives_the_same_chunk():
    algo = make()
    algo.set_eval()
    first, second, third = (
        algo.act(OBS, algo.initial_state(1), generator=torch.Generator().manual_seed(seed)).action
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_windows_and_execution_are_those_of_the_horizons():
    algo = make(
        "algo.horizon.prediction_horizon=10",
        "algo.horizon.action_horizon=3",
        "algo.horizon.observation_horizon=3",
        "train.frame_stack=3",
        "train.seq_length=10",
    )
    assert algo.prediction_horizon == 10
    assert algo.execution == ChunkExecution(8, 3, None, 0)
    assert algo.algo_config.data_needs(algo.global_config).observed_steps == 3
    steps = torch.arange(12.0).view(1, 12, 1)
    batch = {"obs": {"state": steps.expand(1, 12, 3)}, "actions": steps.expand(1, 12, 2)}
    selected = algo.process_batch_for_training(batch)
    assert selected["obs"]["state"][0, :, 0].tolist() == [0, 1, 2]
    assert selected["actions"][0, :, 0].tolist() == list(range(10)), "from the oldest frame on"
