"""VQ-BeT: both stages' losses, padding, schedules, resume, drawing of codes, two ways at once."""

import math

import pytest
import torch
from torch import nn

from imitate.algo.vq_bet import hold_last
from imitate.errors import ConfigError
from imitate.models.vq import Quantized
from tests.tiny import tiny_algo, tiny_batch

SMALL = {
    "chunk": {"size": 4, "execute": 2},
    "vq": {"pretrain_epochs": 2, "num_codes": 3, "latent_dim": 4, "hidden_dims": [16]},
    "transformer": {"num_layers": 1, "dropout": 0.1},
}
STEPS = 5
"""Updates per epoch."""


def make(overrides=(), seed=0, obs=None, goal=(), **train):
    return tiny_algo(
        "vq_bet",
        *overrides,
        obs=obs or {"state": 3},
        goal=goal,
        action=2,
        seed=seed,
        algo=SMALL,
        train={"seq_length": 4, "frame_stack": 2, "num_epochs": 4, **train},
        experiment={"epoch_every_n_steps": STEPS},
    )


def updates(algo, first, last):
    """Updates number ``first`` to ``last - 1``, counted from 0, as the trainer does them."""
    algo.set_train()
    for step in range(first, last):
        batch = algo.process_batch_for_training(tiny_batch(algo, 8, seed=step))
        algo.train_on_batch(batch, step // STEPS + 1)


def weights(algo, name=None):
    net = algo.nets if name is None else algo.nets[name]
    return {key: value.clone() for key, value in net.state_dict().items()}


def equal(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


class FixedAutoencoder(nn.Module):
    """Reconstructs zeros; every chunk is code (1, 2), which stands for 0.5."""

    def forward(self, actions, learn=False):
        commitment = torch.tensor([0.2, 0.4])
        return torch.zeros_like(actions), Quantized(None, None, commitment)

    def encode(self, actions):
        return torch.tensor([[1, 2]]).expand(len(actions), 2)

    def decode(self, codes):
        return torch.full((len(codes), 4, 2), 0.5)


class FixedPolicy(nn.Module):
    """The right first code with probability 1/2, the right second one with 1/4; an offset of 0.25."""

    def forward(self, obs, goal, codes):
        first, second = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.5, 0.25, 0.25])
        logits = torch.stack([first, second]).log().expand(len(codes), 2, 3)
        return logits, torch.full((len(codes), 4, 2), 0.25)


def by_hand():
    actions = torch.tensor([[[1.0, 1.0], [1.0, 3.0], [7.0, 7.0], [7.0, 7.0]]] * 2)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    return {"obs": {}, "goal_obs": None, "actions": actions, "pad_mask": mask}


def test_loss_of_the_first_stage():
    algo = make(("algo.vq.commitment_weight=2.0",))
    algo.nets["autoencoder"] = FixedAutoencoder()
    loss, info = algo._autoencoder_loss(by_hand(), learn=True)
    # |a| is 1 and 2 in the first row, 1 in the second.
    assert info["Reconstruction_Loss"].item() == pytest.approx(4 / 3)
    assert info["Commitment_Loss"].item() == pytest.approx(0.3)
    assert loss.item() == pytest.approx(4 / 3 + 2 * 0.3)


def test_loss_of_the_second_stage():
    algo = make(("algo.offset_weight=3.0", "algo.secondary_code_weight=0.5"))
    algo.nets["autoencoder"], algo.nets["policy"] = FixedAutoencoder(), FixedPolicy()
    loss, info = algo._loss(by_hand())
    code = (1 - 0.5) ** 2 * math.log(2) + 0.5 * (1 - 0.25) ** 2 * math.log(4)
    assert info["Code_Loss"].item() == pytest.approx(code)
    # Wanted are a - 0.5, offered 0.25: 0.25 and (0.25 + 2.25) / 2 in the first row, 0.25 in the second.
    assert info["Offset_Loss"].item() == pytest.approx((0.25 + 1.25 + 0.25) / 3)
    assert loss.item() == pytest.approx(code + 3 * 1.75 / 3)
    assert info["Code_Accuracy"].item() == 1.0


def test_padded_steps_repeat_the_last_real_action():
    actions = torch.arange(8.0).view(2, 4, 1)
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    assert hold_last(actions, mask)[..., 0].tolist() == [[0, 1, 1, 1], [4, 5, 6, 6]]
    assert hold_last(actions, None) is actions


@pytest.mark.parametrize("epoch", [1, 3])
def test_what_padded_actions_hold_does_not_matter(epoch):
    def after(value):
        algo = make()
        updates(algo, 0, 3)  # so that there are codes
        batch = tiny_batch(algo, 8, seed=9)
        batch["pad_mask"][:4, 3:] = False
        batch["actions"][:4, 3:] = value
        torch.manual_seed(1)
        info = algo.train_on_batch(algo.process_batch_for_training(batch), epoch)
        return info["Loss"].item(), weights(algo)

    loss, reached = after(0.0)
    other_loss, other = after(77.0)
    assert other_loss == loss
    assert equal(reached, other)


def test_each_stage_moves_one_network_and_leaves_the_other():
    algo = make()
    start = weights(algo)
    updates(algo, 0, 2 * STEPS)
    pretrained = weights(algo)
    moved = {key for key in start if not torch.equal(start[key], pretrained[key])}
    assert {key.split(".")[0] for key in moved} == {"autoencoder"}
    assert any("codebooks" in key for key in moved)
    updates(algo, 2 * STEPS, 4 * STEPS)
    trained = weights(algo)
    moved = {key for key in start if not torch.equal(trained[key], pretrained[key])}
    assert {key.split(".")[0] for key in moved} == {"policy"}


def test_each_stage_has_a_schedule_that_ends_with_it():
    cosine = {"scheduler_type": "cosine", "warmup_steps": 0}
    overrides = [
        f"algo.optim_params.{name}.learning_rate.{key}={value}"
        for name in ("autoencoder", "policy")
        for key, value in cosine.items()
    ]
    algo = make(overrides, num_epochs=5)

    def rates():
        return [algo.optimizers[name].param_groups[0]["lr"] for name in ("autoencoder", "policy")]

    full = rates()
    updates(algo, 0, 2 * STEPS)
    assert rates() == [pytest.approx(0), full[1]]
    updates(algo, 2 * STEPS, 5 * STEPS - 1)
    assert rates()[1] > 0
    updates(algo, 5 * STEPS - 1, 5 * STEPS)
    assert rates() == [pytest.approx(0), pytest.approx(0)]


def test_processes_that_train_together_take_over_the_codes_of_the_first():
    algo = make()
    shared = []
    algo.optimization.share_weights = shared.append
    updates(algo, 0, 2 * STEPS)
    assert len(shared) == 2 * STEPS
    assert all(module is algo.autoencoder.quantizer for module in shared)
    updates(algo, 2 * STEPS, 3 * STEPS)
    assert len(shared) == 2 * STEPS


def test_validation_is_of_the_policy_in_both_stages():
    algo = make()
    updates(algo, 0, 2)
    algo.set_eval()
    before = weights(algo)
    batch = algo.process_batch_for_training(tiny_batch(algo, 8))
    infos = [algo.train_on_batch(batch, epoch, validate=True) for epoch in (1, 3)]
    assert infos[0]["Loss"] == infos[1]["Loss"]
    assert {"Action_Error", "Reconstruction_Loss", "Code_Loss"} <= infos[0].keys()
    assert equal(before, weights(algo))


class Logits(nn.Module):
    """The first code is 0 or 2, alike; or with a first code given, the second is the same as the first."""

    def forward(self, x):
        known = x[:, 16:]
        if known.shape[1] == 0:
            return torch.tensor([0.0, -50.0, 0.1]).expand(len(x), 3)
        return 50.0 * known


def test_a_code_is_drawn_given_those_before_it():
    policy = make().nets["policy"]
    policy.codes = nn.ModuleList([Logits(), Logits()])
    torch.manual_seed(0)
    codes = policy.draw(torch.zeros(400, 16), 1.0, None)
    assert torch.equal(codes[:, 0], codes[:, 1])
    share = (codes[:, 0] == 2).float().mean()
    assert 0.45 < share < 0.6  # 0.525
    assert (codes[:, 0] != 1).all()
    # Ten times sharper: exp(1) : 1.
    share = (policy.draw(torch.zeros(400, 16), 0.1, None)[:, 0] == 2).float().mean()
    assert 0.66 < share < 0.8  # 0.731
    assert policy.draw(torch.zeros(3, 16), 0.0, None).tolist() == [[2, 2]] * 3


def test_the_offset_is_added_to_the_chunk_of_the_codes():
    algo = make(("algo.temperature=0",))
    algo.set_eval()
    last = algo.policy.offset[-1]
    obs, chunks = {"state": torch.zeros(1, 3)}, []
    for offset in (0.0, 0.25):
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, offset)
        chunks.append(algo.act(obs, algo.initial_state(1)).extras["chunk"])
    torch.testing.assert_close(chunks[1], chunks[0] + 0.25)


def test_draws_follow_the_generator():
    algo = make()
    updates(algo, 0, 15)
    algo.set_eval()
    obs = {"state": torch.zeros(16, 3)}

    def chunk(seed):
        generator = torch.Generator().manual_seed(seed)
        return algo.act(obs, algo.initial_state(16), generator=generator).extras["chunk"]

    assert torch.equal(chunk(1), chunk(1)) and not torch.equal(chunk(1), chunk(2))


@pytest.mark.parametrize(("low_dim", "frame_stack"), [(["state"], 2), ([], 1)])
def test_images_and_goals(low_dim, frame_stack):
    obs = {**dict.fromkeys(low_dim, 3), "cam": (3, 40, 64)}
    algo = make(obs=obs, goal={"target": 2}, frame_stack=frame_stack)
    algo.set_train()
    batch = algo.process_batch_for_training(tiny_batch(algo, 3))
    for epoch in (1, 3):
        assert torch.isfinite(algo.train_on_batch(batch, epoch)["Loss"])
    trunk = algo.nets["policy"].encoder.obs.nets["cam"].core.backbone
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trunk.parameters())
    algo.set_eval()
    obs = {key: torch.randn(2, *shape) for key, shape in algo.obs_shapes.items()}
    step = algo.act(obs, algo.initial_state(2), {"target": torch.zeros(2, 2)})
    assert step.extras["chunk"].shape == (2, 4, 2)


def test_it_takes_one_of_two_ways_and_both_in_turn():
    """Demonstrations go up or down from the same place: their mean, 0, is never right."""
    algo = make(
        (
            "algo.vq.pretrain_epochs=6",
            "algo.optim_params.autoencoder.learning_rate.initial=0.01",
            "algo.optim_params.policy.learning_rate.initial=0.006",
            "algo.optim_params.policy.learning_rate.warmup_steps=10",
        ),
        num_epochs=24,
    )
    algo.set_train()
    torch.manual_seed(3)
    for step in range(24 * STEPS):
        side = torch.randint(0, 2, (64, 1, 1)) * 2.0 - 1.0
        actions = (0.8 * side + 0.05 * torch.randn(64, 5, 2)).clamp(-1, 1)
        batch = {"obs": {"state": torch.zeros(64, 5, 3)}, "actions": actions}
        algo.train_on_batch(algo.process_batch_for_training(batch), step // STEPS + 1)
    algo.set_eval()
    with torch.no_grad():
        chunks = algo.act({"state": torch.zeros(200, 3)}, algo.initial_state(200)).extras["chunk"]
    right = (chunks.abs() - 0.8).abs().amax((1, 2)) < 0.3
    assert right.float().mean() >= 0.98
    assert 0.3 < (chunks.mean((1, 2)) > 0).float().mean() < 0.7


def test_a_run_may_not_end_early_while_the_policy_waits():
    stopping = ["experiment.early_stopping.enabled=true"]
    stopping += ["experiment.early_stopping.metric=valid_loss"]
    make([*stopping, "experiment.early_stopping.patience=3"])
    with pytest.raises(ConfigError, match="patience 2 would end the run while the policy waits"):
        make([*stopping, "experiment.early_stopping.patience=2"])
