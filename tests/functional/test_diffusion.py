"""Diffusion against numbers recorded from the schedulers of diffusers 0.42.1, and worked out by hand.

The fixture holds, for 100 training steps: each schedule, noisy data and velocities, and for many settings of
DDPMScheduler and DDIMScheduler the timesteps and the results of steps 0, 1, n // 2, n - 2 and n - 1 from one
noisy point and one network output (for DDPM with one given draw of fresh noise).
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError
from imitate.functional.diffusion import (
    make_sampler,
    noise_schedule,
    predicted_data,
    predicted_noise,
)

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


@pytest.mark.parametrize("index", range(len(SETTINGS)), ids=SETTINGS)
def test_reverse_steps_equal_diffusers(index, monkeypatch):
    name, schedule, prediction, clip, count, offset, one = SETTINGS[index].split("/")
    count = int(count)
    sampler = make_sampler(
        name,
        noise_schedule(schedule, 100),
        count,
        prediction=prediction,
        clip=1.0 if clip == "True" else None,
        steps_offset=int(offset),
        set_alpha_to_one=one == "True",
    )
    assert list(sampler.timesteps) == RECORDED["timesteps"][index, :count].tolist()
    fresh = recorded("fresh")
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, generator=None: self.copy_(fresh))
    chosen = sorted({0, 1, count // 2, count - 2, count - 1})
    for k, expected in zip(chosen, RECORDED["steps"][index], strict=True):
        actual = sampler.step(sampler.steps[k], recorded("noisy"), recorded("output"))
        close(actual, torch.from_numpy(expected))


def test_cosine_schedule_by_hand():
    schedule = noise_schedule("squaredcos_cap_v2", 4)
    left = [math.cos((i / 4 + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(5)]
    # Within the cap the products telescope; the last beta would be 1 and is capped.
    assert schedule.alphas_cumprod[:3].tolist() == pytest.approx(
        [left[i] / left[0] for i in (1, 2, 3)], abs=1e-6
    )
    assert schedule.betas[3].item() == pytest.approx(0.999)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_perfect_output_gives_back_data_and_noise(prediction):
    torch.manual_seed(0)
    schedule = noise_schedule("linear", 100)
    data, noise, t = torch.randn(5, 4, 2), torch.randn(5, 4, 2), torch.tensor([0, 9, 40, 80, 99])
    noisy = schedule.add_noise(data, noise, t)
    output = schedule.target(prediction, data, noise, t)
    alpha, sigma = schedule.alpha_sigma(t, data)
    found = predicted_data(prediction, output, noisy, alpha, sigma)
    torch.testing.assert_close(found, data, rtol=1e-4, atol=1e-5)
    found = predicted_noise(prediction, output, noisy, alpha, sigma)
    torch.testing.assert_close(found, noise, rtol=1e-3, atol=1e-4)


def test_targets():
    schedule = noise_schedule("linear", 10)
    data, noise, t = torch.ones(1, 1), torch.full((1, 1), 3.0), torch.tensor([4])
    left = schedule.alphas_cumprod[4].item()
    assert schedule.target("epsilon", data, noise, t).item() == 3.0
    assert schedule.target("sample", data, noise, t).item() == 1.0
    expected = 3.0 * math.sqrt(left) - math.sqrt(1 - left)
    assert schedule.target("v_prediction", data, noise, t).item() == pytest.approx(expected)


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
        (lambda s: noise_schedule("linear", 0), "num_train_timesteps is 0"),
        (lambda s: make_sampler("dim", s, 5), "did you mean 'ddim'"),
        (lambda s: make_sampler("ddim", s, 11), "num_inference_timesteps is 11; wanted 1 to"),
        (lambda s: make_sampler("ddim", s, 5, prediction="epsilom"), "did you mean 'epsilon'"),
        (lambda s: make_sampler("ddim", s, 5, steps_offset=2), "steps_offset is 2; wanted 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call(noise_schedule("linear", 10))


def test_a_schedule_of_one_step_is_the_shortest():
    assert noise_schedule("linear", 1, beta_start=0.25).alphas_cumprod.tolist() == [0.75]
    with pytest.raises(ConfigError, match="num_train_timesteps is 0; it has to be at least 1"):
        noise_schedule("linear", 0)


def test_a_schedule_on_a_device_is_the_same():
    schedule = noise_schedule("linear", 5)
    moved = schedule.to("cpu")
    assert torch.equal(moved.betas, schedule.betas)
    assert torch.equal(moved.alphas_cumprod, schedule.alphas_cumprod)


def test_an_unknown_prediction_is_refused():
    schedule, one = noise_schedule("linear", 5), torch.ones(1, 1)
    with pytest.raises(ConfigError, match="prediction_type: unknown 'epsilom'; did you mean"):
        schedule.target("epsilom", one, one, torch.tensor([1]))


@pytest.mark.parametrize("name", ["ddpm", "ddim"])
def test_one_step_may_do_and_data_are_clipped_at_one(name):
    sampler = make_sampler(name, noise_schedule("linear", 5), 1)
    assert sampler.timesteps == (0,)
    assert sampler.clip == 1.0
    with pytest.raises(ConfigError, match="num_inference_timesteps is 0; wanted 1 to"):
        make_sampler(name, noise_schedule("linear", 5), 0)


def test_the_last_step_draws_no_noise():
    sampler = make_sampler("ddpm", noise_schedule("linear", 5), 5)
    assert [step.std > 0 for step in sampler.steps] == [True] * 4 + [False]
