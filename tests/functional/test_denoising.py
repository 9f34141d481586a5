"""Noise, flows and chunks that continue given actions, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate.algo.flow_policy import draw_times, integrate, straight_path
from imitate.errors import ConfigError
from imitate.functional import diffusion
from imitate.functional.diffusion import make_sampler, noise_schedule
from imitate.functional.losses import masked_mean
from imitate.functional.realtime import Given, draw_given, given_places

RECORDED = dict(np.load(Path(__file__).parent / "fixtures" / "diffusers_0_42.npz"))
SETTINGS = [str(name) for name in RECORDED["settings"]]
SCHEDULES = ["linear", "scaled_linear", "squaredcos_cap_v2"]
PREDICTIONS = ["epsilon", "sample", "v_prediction"]


def recorded(name):
    return torch.from_numpy(RECORDED[name])


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_equal_diffusers(name):
    schedule = noise_schedule(name, 100)
    close(schedule.betas, recorded(f"betas/{name}"))
    close(schedule.alphas_cumprod, recorded(f"alphas_cumprod/{name}"))
    data, noise, t = recorded("data"), recorded("noise"), recorded("t")
    close(schedule.add_noise(data, noise, t), recorded(f"add_noise/{name}"))
    close(schedule.velocity(data, noise, t), recorded(f"velocity/{name}"))


@pytest.mark.parametrize("first", range(12))
def test_reverse_steps_equal_diffusers(first, subtests, monkeypatch):
    fresh = recorded("fresh")
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, generator=None: self.copy_(fresh))
    for index in range(first, len(SETTINGS), 12):
        with subtests.test(SETTINGS[index]):
            reverse_steps_are_those_recorded(index)


def reverse_steps_are_those_recorded(index):
    name, schedule, prediction, clip, count, offset, one = SETTINGS[index].split("/")
    count = int(count)
    keys = {"prediction": prediction, "clip": 1.0 if clip == "True" else None}
    keys |= {"steps_offset": int(offset), "set_alpha_to_one": one == "True"}
    sampler = make_sampler(name, noise_schedule(schedule, 100), count, **keys)
    assert list(sampler.timesteps) == RECORDED["timesteps"][index, :count].tolist()
    chosen = sorted({0, 1, count // 2, count - 2, count - 1})
    for k, expected in zip(chosen, RECORDED["steps"][index], strict=True):
        actual = sampler.step(sampler.steps[k], recorded("noisy"), recorded("output"))
        close(actual, torch.from_numpy(expected))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_perfect_output_gives_back_data_and_noise(prediction):
    torch.manual_seed(0)
    schedule = noise_schedule("linear", 100)
    data, noise, t = torch.randn(5, 4, 2), torch.randn(5, 4, 2), torch.tensor([0, 9, 40, 80, 99])
    noisy = schedule.add_noise(data, noise, t)
    output = schedule.target(prediction, data, noise, t)
    alpha, sigma = schedule.alpha_sigma(t, data)
    found = diffusion.predicted_data(prediction, output, noisy, alpha, sigma)
    torch.testing.assert_close(found, data, rtol=1e-4, atol=1e-5)
    found = diffusion.predicted_noise(prediction, output, noisy, alpha, sigma)
    torch.testing.assert_close(found, noise, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ddpm", "ddim"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_sampling_with_the_exact_network_finds_the_data(name, prediction):
    """All data at one point: the ideal network is known, and the samplers have to end there."""
    schedule = noise_schedule("squaredcos_cap_v2", 100)
    point = torch.tensor([[0.3, -0.8]])

    def network(noisy, timestep):
        t = torch.tensor([timestep])
        alpha, sigma = schedule.alpha_sigma(t, noisy)
        noise = (noisy - alpha * point) / sigma
        return schedule.target(prediction, point, noise, t)

    sampler = make_sampler(name, schedule, 10, prediction=prediction)
    found = sampler.sample(network, torch.randn(1, 2, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(found, point, rtol=0, atol=1e-3)


def test_generator_decides_ddpm_and_ddim_draws_nothing():
    schedule = noise_schedule("squaredcos_cap_v2", 20)
    noise = torch.zeros(1, 3)

    def run(name, seed):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        found = make_sampler(name, schedule, 20).sample(lambda x, t: 0.1 * x, noise, generator)
        return found, torch.equal(before, generator.get_state())

    assert torch.equal(run("ddpm", 1)[0], run("ddpm", 1)[0])
    assert not torch.equal(run("ddpm", 1)[0], run("ddpm", 2)[0])
    assert run("ddim", 1)[1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: noise_schedule("squaredcos_cap", 10), "did you mean 'squaredcos_cap_v2'"),
        (lambda s: noise_schedule("linear", 0), "num_train_timesteps is 0; expected at least 1"),
        (lambda s: make_sampler("dim", s, 5), "did you mean 'ddim'"),
        (lambda s: make_sampler("ddim", s, 11), "num_inference_timesteps is 11; wanted 1 to"),
        (lambda s: make_sampler("ddim", s, 5, prediction="epsilom"), "did you mean 'epsilon'"),
        (lambda s: make_sampler("ddim", s, 5, steps_offset=2), "steps_offset is 2; wanted 0 to 1"),
        (lambda s: make_sampler("ddpm", s, 0), "inference_timesteps is 0; wanted 1 to"),
        (lambda s: make_sampler("ddim", s, 0), "inference_timesteps is 0; wanted 1 to"),
        (
            lambda s: s.target("epsilom", *[torch.ones(1, 1)] * 2, torch.tensor([1])),
            "unknown 'epsilom'; did you mean",
        ),
        (lambda s: draw_times(3, "logitnormal"), "did you mean 'logit_normal'"),
        (lambda s: integrate(lambda x, t: x, torch.ones(1), 3, "heum"), "did you mean 'heun'"),
        (lambda s: integrate(lambda x, t: x, torch.ones(1), 0), "is 0; wanted at least 1"),
    ],
)
def test_impossible_settings_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call(noise_schedule("linear", 10))


def test_a_schedule_of_one_step_is_the_shortest():
    assert noise_schedule("linear", 1, beta_start=0.25).alphas_cumprod.tolist() == [0.75]


@pytest.mark.parametrize("name", ["ddpm", "ddim"])
def test_one_step_may_do_and_data_are_clipped_at_one(name):
    sampler = make_sampler(name, noise_schedule("linear", 5), 1)
    assert sampler.timesteps == (0,)
    assert sampler.clip == 1.0


def test_the_last_step_draws_no_noise():
    sampler = make_sampler("ddpm", noise_schedule("linear", 5), 5)
    assert [step.std > 0 for step in sampler.steps] == [True] * 4 + [False]


def test_straight_path_by_hand():
    noise = torch.tensor([[[1.0], [2.0]], [[0.0], [4.0]]])
    data = torch.tensor([[[5.0], [0.0]], [[1.0], [4.0]]])
    x, velocity = straight_path(noise, data, torch.tensor([0.25, 1.0]))
    assert x.flatten().tolist() == [2.0, 1.5, 1.0, 4.0]
    assert velocity.flatten().tolist() == [4.0, -2.0, 1.0, 0.0]


def test_integrators_by_hand():
    # dx/dt = x from 1 in two steps: Euler (1 + h)^2, Heun (1 + h + h^2 / 2)^2.
    one = torch.ones(1)
    assert integrate(lambda x, t: x, one, 2, "euler").item() == pytest.approx(2.25)
    assert integrate(lambda x, t: x, one, 2, "heun").item() == pytest.approx(2.640625)


def test_times_that_the_network_sees():
    for method, expected in (("euler", [0.0, 0.5]), ("heun", [0.0, 0.5, 0.5, 1.0])):
        seen = []
        integrate(lambda x, t, seen=seen: seen.append(t) or x, torch.ones(1), 2, method)
        assert seen == expected


def quantile(density, q, **kwargs):
    times = draw_times(40000, density, generator=torch.Generator().manual_seed(0), **kwargs)
    assert times.shape == (40000,)
    assert times.min() >= 0
    assert times.max() <= 1
    return times.quantile(q).item()


def test_time_densities_by_their_quantiles():
    assert quantile("uniform", 0.25) == pytest.approx(0.25, abs=0.01)
    # Median of Beta(1.5, 1): 0.5^(2/3) = 0.62996; time 0.999 * (1 - 0.62996).
    assert quantile("beta", 0.5) == pytest.approx(0.36967, abs=0.01)
    assert quantile("beta", 0.5, beta=1.0, max_time=1.0) == pytest.approx(0.5, abs=0.01)
    # The logit's quantile at 0.8413 is mean + std.
    assert quantile("logit_normal", 0.841345) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)
    expected = 1 / (1 + math.exp(-0.5))
    assert quantile("logit_normal", 0.5, mean=0.5, std=2.0) == pytest.approx(expected, abs=0.01)
    # A standard deviation above the mean: logit 0.5 + 2.
    expected = 1 / (1 + math.exp(-2.5))
    wide = quantile("logit_normal", 0.841345, mean=0.5, std=2.0)
    assert wide == pytest.approx(expected, abs=0.01)


def test_places_count_from_the_present_action():
    places = given_places(torch.tensor([0, 1, 3]), first=1, steps=5)
    assert places.int().tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 1, 1, 0]]


def test_each_delay_is_drawn_equally_often():
    torch.manual_seed(0)
    given = draw_given(torch.zeros(40_000, 8, 2), first=2, max_delay=3)
    counts = torch.bincount(given.mask.sum(1), minlength=5)
    assert counts[4] == 0
    # Binomial: 10,000 each, with a standard deviation of 87.
    assert all(abs(int(count) - 10_000) < 450 for count in counts[:4])
    assert not given.mask[:, :2].any()
    assert not given.mask[:, 5:].any()


def test_without_a_delay_nothing_is_drawn():
    torch.manual_seed(0)
    assert draw_given(torch.zeros(4, 8, 2), first=1, max_delay=0) is None
    after = torch.rand(())
    torch.manual_seed(0)
    assert after == torch.rand(())


def test_given_actions_take_the_place_of_noisy_ones():
    given = Given(torch.full((1, 3, 1), 7.0), torch.tensor([[True, False, True]]))
    assert given.fill(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [7.0, 2.0, 7.0]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Two samples of three steps with errors 1 .. 6; step 0 of the first and steps 0, 1 of the second are given.
        (None, (2 + 3 + 6) / 3),
        (torch.tensor([[True, True, False], [True, True, True]]), (2 + 6) / 2),
        (torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 2.0]]), (0.5 * 2 + 2 * 6) / 2.5),
    ],
)
def test_the_loss_is_a_mean_over_the_remaining_actions(weight, expected):
    mask = torch.tensor([[True, False, False], [True, True, False]])
    error = torch.arange(1.0, 7.0).view(2, 3)
    given = Given(torch.zeros(2, 3, 1), mask)
    assert masked_mean(error, given.rest(weight)).item() == pytest.approx(expected)


def test_a_batch_of_which_nothing_remains_has_no_loss():
    given = Given(torch.zeros(1, 2, 1), torch.ones(1, 2, dtype=torch.bool))
    assert masked_mean(torch.ones(1, 2), given.rest(None)).item() == 0.0
