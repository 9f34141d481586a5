"""Diffusion policy: loss, prediction types, sampling."""

import pytest
import torch

from tests.tiny import tiny_algo, tiny_batch

SMALL = {
    "unet": {"down_dims": [16, 32], "diffusion_step_embed_dim": 16},
    "ddpm": {"num_train_timesteps": 100, "num_inference_timesteps": 100},
    "ddim": {"num_train_timesteps": 100},
}


def make(overrides=()):
    return tiny_algo("diffusion_policy", *overrides, obs={"state": 3}, action=2, algo=SMALL)


class Recorder(torch.nn.Module):
    """A network that remembers what it was asked and answers with a constant."""

    def __init__(self, algo, answer=0.0):
        super().__init__()
        self.encoder = algo.nets["policy"].encoder
        self.answer = answer
        self.asked = []

    def condition(self, obs, goal=None):
        return self.encoder(obs, goal)

    def forward(self, noisy, step, condition, given=None):
        self.asked.append((noisy, step))
        return torch.full_like(noisy, self.answer)


def test_windows_begin_at_the_oldest_observation():
    algo = make()
    batch = tiny_batch(algo, 4)
    selected = algo.process_batch_for_training(batch)
    assert torch.equal(selected["actions"], batch["actions"][:, :16])
    assert torch.equal(selected["obs"]["state"], batch["obs"]["state"][:, :2])


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_loss_is_the_mean_square_of_the_target(prediction):
    """A network that answers c: the loss is E[(c - target)^2] over the steps that are real; c = 0 would hide a sign."""
    algo = make((f"algo.ddpm.prediction_type={prediction}",))
    algo.set_train()
    algo.nets["policy"] = Recorder(algo, answer=0.5)
    batch = tiny_batch(algo, 4)
    batch["pad_mask"][:, 10:] = False
    batch["actions"][:, 10:] = 77.0
    torch.manual_seed(5)
    loss, _ = algo._loss(algo.process_batch_for_training(batch))
    torch.manual_seed(5)
    noise = torch.randn(4, 16, 2)
    step = torch.randint(100, (4,))
    actions = batch["actions"][:, :16]
    left = algo.schedule.alphas_cumprod[step].view(-1, 1, 1)
    target = {
        "epsilon": noise,
        "sample": actions,
        "v_prediction": left.sqrt() * noise - (1 - left).sqrt() * actions,
    }[prediction]
    assert float(loss) == pytest.approx(float((0.5 - target[:, :10]).square().mean()), rel=1e-5)
    noisy, asked = algo.nets["policy"].asked[0]
    assert torch.equal(asked, step)
    torch.testing.assert_close(noisy, left.sqrt() * actions + (1 - left).sqrt() * noise)


def test_a_perfect_network_gives_back_the_chunk():
    """The network that predicts the clean chunk (0.25 everywhere) ends there, by DDIM and DDPM."""
    for sampler in ("ddim", "ddpm"):
        other = {"ddim": "ddpm", "ddpm": "ddim"}[sampler]
        algo = make(
            (
                f"algo.{sampler}.enabled=true",
                f"algo.{other}.enabled=false",
                f"algo.{sampler}.prediction_type=sample",
            )
        )
        algo.set_eval()
        algo.ema.module["policy"] = Answers(algo, 0.25)
        step = algo.act({"state": torch.zeros(2, 3)}, algo.initial_state(2))
        torch.testing.assert_close(step.extras["chunk"], torch.full((2, 15, 2), 0.25))


class Answers(Recorder):
    def for_steps(self, steps, condition, given=None):
        return lambda noisy, step: self(noisy, step, condition)


def test_eight_actions_come_from_one_plan_and_each_row_has_its_own():
    algo = make(("algo.ddpm.enabled=false", "algo.ddim.enabled=true"))
    algo.set_eval()
    state = algo.initial_state(4)
    chunks, actions = [], []
    for _ in range(9):
        step = algo.act({"state": torch.randn(4, 3)}, state)
        state = step.state
        chunks.append(step.extras["chunk"])
        actions.append(step.action)
    assert actions[0].shape == (4, 2)
    assert not torch.allclose(actions[0][0], actions[0][1])
    for t in range(8):
        assert torch.equal(actions[t], chunks[0][:, t])
    assert not torch.equal(actions[8], chunks[0][:, 8])


def test_the_sizes_of_the_network_are_heeded():
    small, large = make(), make(("algo.unet.down_dims=[32,64]",))
    count = [sum(p.numel() for p in algo.nets.parameters()) for algo in (small, large)]
    assert count[1] > 2 * count[0]
