"""Behavior cloning: the losses' numbers, what tells the variants apart, memory and goals."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.algo import bc
from imitate.errors import ConfigError
from imitate.models.actor import Actor, RecurrentActor, TransformerActor
from imitate.models.heads import Deterministic, DeterministicHead, GaussianHead, GMMHead
from tests.algo.conftest import within
from tests.tiny import tiny_algo, tiny_config

SHAPES = {"state": (2,)}
FAST = {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}}


def make(overrides=(), ac_dim=2, goal=False, seed=0, hidden=32):
    words = {"algo": FAST, "train": {"num_epochs": 10}, "experiment": {"epoch_every_n_steps": 100}}
    words |= {"obs": {"state": 2}, "goal": ("state",) if goal else (), "hidden": [hidden]}
    return tiny_algo("bc", *overrides, action=ac_dim, seed=seed, **words)


def batch_of(obs, actions, **extra):
    return {"obs": {"state": torch.as_tensor(obs)}, "actions": torch.as_tensor(actions), **extra}


def predict(algo, actions):
    """Let the head predict these actions, whatever is observed."""
    head = algo.policy.head
    head.forward = lambda features: Deterministic(torch.tensor(actions))
    head.act = lambda features: torch.tensor(actions)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), bc.BC),
        (("algo.gaussian.enabled=true",), bc.BC_Gaussian),
        (("algo.gmm.enabled=true",), bc.BC_GMM),
        (("algo.vae.enabled=true",), bc.BC_VAE),
        (("algo.rnn.enabled=true", "train.seq_length=10"), bc.BC_RNN),
        (("algo.rnn.enabled=true", "algo.gmm.enabled=true", "train.seq_length=10"), bc.BC_RNN_GMM),
    ],
)
def test_the_section_picks_the_class(overrides, expected):
    assert type(make(overrides)) is expected


def test_regression_losses_by_hand():
    """Predicted (0.5, 0, 0, 1) for (0, 0.5, 0, -1): squares .25 .25 0 4; smooth L1 .125 .125 0 1.5."""
    weights = {"l2": 1, "l1": 10, "cos": 100}
    algo = make([f"algo.loss.{key}_weight={value}" for key, value in weights.items()], ac_dim=4)
    predict(algo, [[0.5, 0.0, 0.0, 1.0]])
    batch = batch_of(torch.zeros(1, 1, 2), [[[0.0, 0.5, 0.0, -1.0]]])
    info = algo.train_on_batch(algo.process_batch_for_training(batch), 1, validate=True)
    assert float(info["L2_Loss"]) == pytest.approx(4.5 / 4)
    assert float(info["L1_Loss"]) == pytest.approx(1.75 / 4)
    # The first three dimensions are at right angles.
    assert float(info["Cosine_Loss"]) == pytest.approx(1.0)
    assert float(info["Loss"]) == pytest.approx(1.125 + 4.375 + 100.0)
    assert float(info["Action_Error"]) == pytest.approx((0.5 + 0.5 + 0.0 + 2.0) / 4)


def test_padded_steps_are_not_supervised():
    """Errors 1 and 3 with the second step padded: 1, not the mean of 1 and 9."""
    algo = make(("algo.rnn.enabled=true", "train.seq_length=2"), ac_dim=1)
    predict(algo, [[[1.0], [3.0]]])

    def loss(**extra):
        batch = batch_of(torch.zeros(1, 2, 2), torch.zeros(1, 2, 1), **extra)
        return algo.train_on_batch(algo.process_batch_for_training(batch), 1, validate=True)

    assert float(loss()["L2_Loss"]) == pytest.approx(5.0)
    mask = torch.tensor([[True, False]])
    assert float(loss(pad_mask=mask)["L2_Loss"]) == pytest.approx(1.0)


def test_negative_log_likelihood_of_a_gaussian_by_hand():
    """std 0.1 everywhere, mean 0 (zero weights): -log N(0.1; 0, 0.1) = log 0.1 + log sqrt(2 pi) + 0.5 per dim."""
    algo = make(("algo.gaussian.enabled=true", "algo.gaussian.fixed_std=true"))
    for p in algo.nets.parameters():
        torch.nn.init.zeros_(p)
    batch = batch_of([[[0.0, 0.0]]], [[[0.1, 0.1]]])
    expected = 2 * (math.log(0.1) + 0.5 * math.log(2 * math.pi) + 0.5)
    for validate in (False, True):
        algo.set_eval() if validate else algo.set_train()
        loss, _ = algo._loss(algo.process_batch_for_training(batch))
        # In evaluation too: the low noise of acting is not a measure of fit.
        assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_negative_log_likelihood_of_a_mixture_by_hand():
    """Weights 3/4 and 1/4, means 0 and 0.5, std log 2: -log(3/4 N(0.5; 0, std) + 1/4 N(0.5; 0.5, std))."""
    keys = ("enabled=true", "num_modes=2", "min_std=1e-9")
    algo = make([f"algo.gmm.{key}" for key in keys], ac_dim=1)
    for p in algo.nets.parameters():
        torch.nn.init.zeros_(p)
    with torch.no_grad():
        algo.policy.head.mean.bias.copy_(torch.tensor([0.0, math.atanh(0.5)]))
        algo.policy.head.logits.bias.copy_(torch.tensor([math.log(3.0), 0.0]))
    std = math.log(2.0)
    density = (0.75 * math.exp(-0.5 * (0.5 / std) ** 2) + 0.25) / (std * math.sqrt(2 * math.pi))
    batch = algo.process_batch_for_training(batch_of([[[0.0, 0.0]]], [[[0.5]]]))
    info = algo.train_on_batch(batch, 1, validate=True)
    assert float(info["Loss"]) == pytest.approx(-math.log(density), rel=1e-5)
    assert float(info["Log_Likelihood"]) == pytest.approx(math.log(density), rel=1e-5)


@pytest.mark.parametrize(("sums", "errors"), [(True, (6.5, 10.0)), (False, (3.25, 5.0))])
def test_the_evidence_bound_of_a_chunk_by_hand(sums, errors):
    """Errors (1/2, 5/2) and (3, -1), the second of weight 3; a divergence of 2 with the weight 0.1."""
    keys = ("enabled=true", "kl_weight=0.1")
    keys += (f"decoder.reconstruction_sum_across_elements={str(sums).lower()}",)
    chunk = (
        "algo.chunk.enabled=true",
        "algo.chunk.size=2",
        "algo.chunk.execute=1",
        "train.seq_length=2",
    )
    algo = make([*(f"algo.vae.{key}" for key in keys), *chunk])
    out = SimpleNamespace(
        reconstruction=torch.tensor([[1.0, 2.0, 3.0, 0.0]]), reconstruction_loss=torch.zeros(1)
    )
    algo.nets["policy"].vae.forward = lambda *_: SimpleNamespace(
        **vars(out), kl=torch.tensor([2.0])
    )
    actions = [[[0.5, -0.5], [0.0, 1.0]]]
    batch = batch_of(torch.zeros(1, 2, 2), actions, weight=torch.tensor([[1.0, 3.0]]))
    info = algo.train_on_batch(algo.process_batch_for_training(batch), 1, validate=True)
    expected = (errors[0] + 3 * errors[1]) / 4
    assert float(info["Reconstruction_Loss"]) == pytest.approx(expected)
    assert float(info["Loss"]) == pytest.approx(expected + 0.2)


def test_chunks_of_a_recurrent_policy_need_longer_windows():
    """Chunks of 3 from each of 5 steps: 7 steps."""
    chunk = ("algo.rnn.enabled=true", "algo.rnn.horizon=5", "algo.chunk.enabled=true")
    with pytest.raises(ConfigError, match="need windows of 7 steps: set it to 7"):
        make((*chunk, "algo.chunk.size=3", "train.seq_length=6"))


class OwnBC(bc.BC):
    """A class of a user, without parts of its own."""


@pytest.mark.parametrize(
    ("algo_class", "enabled", "network", "head"),
    [
        (OwnBC, (), Actor, DeterministicHead),
        (OwnBC, ("gaussian",), Actor, GaussianHead),
        (OwnBC, ("gmm", "rnn"), RecurrentActor, GMMHead),
        (OwnBC, ("transformer",), TransformerActor, DeterministicHead),
        (bc.BC_GMM, (), Actor, GMMHead),
        (bc.BC_RNN_GMM, (), RecurrentActor, GMMHead),
        (bc.BC_Transformer, ("gmm",), TransformerActor, DeterministicHead),
    ],
)
def test_a_derived_class_has_the_enabled_parts_and_a_named_one_its_own(
    algo_class, enabled, network, head
):
    config = tiny_config(
        obs={"state": 2},
        algo={part: {"enabled": True} for part in enabled},
        train={"seq_length": 10, "frame_stack": 10 if "transformer" in enabled else 1},
    )
    algo = algo_class(config.algo, config.observation, config, SHAPES, 2, "cpu")
    assert type(algo.policy) is network
    assert type(algo.policy.head) is head


def train_on_two_modes(algo, steps):
    """The expert goes left or right, at random, from the same state."""
    rng = np.random.default_rng(0)
    algo.set_train()
    for _ in range(steps):
        side = rng.choice([-0.8, 0.8], size=(64, 1, 1)).astype(np.float32)
        batch = batch_of(np.zeros((64, 1, 2), np.float32), np.repeat(side, 2, axis=-1))
        algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)
    algo.set_eval()
    return algo.get_action({"state": torch.zeros(200, 2)}).numpy()


def test_regression_averages_two_modes_away():
    assert np.abs(train_on_two_modes(make(), steps=100)).max() < 0.2


@pytest.mark.parametrize(
    ("overrides", "share"),
    [
        (("algo.gmm.enabled=true", "algo.gmm.num_modes=2"), 0.9),
        (("algo.vae.enabled=true", "algo.vae.latent_dim=2", "algo.vae.kl_weight=0.1"), 0.4),
    ],
    ids=["gmm", "vae"],
)
def test_mixture_and_vae_keep_both_modes(overrides, share):
    # After 200 steps the mixture has 1.0 and the VAE 0.52 to 0.59 by seed; without samples it would be 0 or one side.
    actions = train_on_two_modes(make(overrides), steps=200)
    assert np.mean(np.abs(np.abs(actions) - 0.8) < 0.15) > share
    assert 0.2 < np.mean(actions[:, 0] > 0) < 0.8


def remembered(algo, most):
    """True as soon as the action at every step is the first observation of the window: only memory tells."""
    rng, loss = np.random.default_rng(0), None

    def update(_):
        nonlocal loss
        first = rng.choice([-0.5, 0.5], size=(32, 1, 2)).astype(np.float32)
        obs = np.zeros((32, 5, 2), np.float32)
        obs[:, :1] = first
        batch = batch_of(obs, np.repeat(first, 5, axis=1))
        loss = algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)["Loss"]

    return within(most, update, lambda: float(loss) < 0.01)


SIZES = ("algo.rnn.horizon=5", "algo.rnn.hidden_dim=32")
RNN = ("algo.rnn.enabled=true", "train.seq_length=5", *SIZES)


@pytest.mark.parametrize("rnn_type", ["LSTM", "GRU"])
def test_a_recurrent_policy_remembers(rnn_type):
    algo = make((*RNN, f"algo.rnn.rnn_type={rnn_type}"))
    assert remembered(algo, 400)
    algo.set_eval()
    actions = [algo.get_action({"state": torch.tensor([[0.5, -0.5]])})]
    actions += [algo.get_action({"state": torch.zeros(1, 2)}) for _ in range(4)]
    wanted = torch.tensor([[0.5, -0.5]]).expand(5, 2)
    torch.testing.assert_close(torch.cat(actions), wanted, atol=0.2, rtol=0)
    # The horizon is over: what was seen before is forgotten.
    assert algo.get_action({"state": torch.zeros(1, 2)}).abs().max() < 0.4


def test_acting_step_by_step_equals_the_window():
    algo = make(RNN)
    algo.set_eval()
    window = torch.randn(3, 5, 2)
    with torch.no_grad():
        features, _ = algo.nets["policy"]({"state": window})
        whole = algo.nets["policy"].head.act(features)
    stepwise = torch.stack([algo.get_action({"state": window[:, t]}) for t in range(5)], dim=1)
    torch.testing.assert_close(stepwise, whole, atol=1e-6, rtol=1e-5)


def test_open_loop_looks_once_per_horizon():
    algo = make((*RNN, "algo.rnn.open_loop=true"))
    obs = torch.randn(2, 5, 2)
    selected = algo.process_batch_for_training(batch_of(obs, torch.zeros(2, 5, 2)))
    assert torch.equal(selected["obs"]["state"], obs[:, :1].expand(2, 5, 2))
    algo.set_eval()

    def rollout(later):
        algo.reset()
        first = algo.get_action({"state": torch.ones(1, 2)})
        return [first] + [algo.get_action({"state": later}) for _ in range(5)]

    one, other = rollout(torch.zeros(1, 2)), rollout(torch.full((1, 2), 9.0))
    for step in range(5):
        assert torch.equal(one[step], other[step])
    assert not torch.equal(one[5], other[5])


def test_stacked_frames_are_all_seen_oldest_first():
    algo = make(("train.frame_stack=3",))
    algo.set_eval()
    obs = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]])
    selected = algo.process_batch_for_training(batch_of(obs, torch.arange(6.0).view(1, 3, 2)))
    assert torch.equal(selected["actions"], torch.tensor([[4.0, 5.0]]))
    with torch.no_grad():
        features, _ = algo.nets["policy"](selected["obs"])
        expected = algo.nets["policy"].head.act(features)
    for t in range(3):
        action = algo.get_action({"state": obs[:, t]})
    torch.testing.assert_close(action, expected)
    # The first observation of an episode stands for the frames before it.
    algo.reset()
    repeated = {"state": obs[:, :1].expand(1, 3, 2)}
    with torch.no_grad():
        features, _ = algo.nets["policy"](repeated)
    action = algo.get_action({"state": obs[:, 0]})
    torch.testing.assert_close(action, algo.nets["policy"].head.act(features))


@pytest.mark.parametrize(
    "variant", [(), ("algo.vae.enabled=true",), RNN], ids=["mlp", "vae", "rnn"]
)
def test_the_goal_changes_the_action(variant):
    algo = make(variant, goal=True)
    algo.set_eval()
    obs = {"state": torch.zeros(1, 2)}
    actions = []
    for goal in (torch.zeros(1, 2), torch.ones(1, 2)):
        algo.reset()
        torch.manual_seed(0)
        actions.append(algo.get_action(obs, {"state": goal}))
    assert not torch.allclose(*actions)


def test_exploring_is_noisier_than_acting():
    algo = make(("algo.gaussian.enabled=true",))
    algo.set_eval()
    obs, state = {"state": torch.zeros(500, 2)}, algo.initial_state(500)
    with torch.no_grad():
        assert algo.act(obs, state).action.std(0).max() < 1e-6
        assert algo.act(obs, state, explore=True).action.std(0).min() > 0.03


def test_a_generator_determines_the_samples():
    algo = make(("algo.gmm.enabled=true",))
    obs, state = {"state": torch.zeros(4, 2)}, algo.initial_state(4)

    def sample(seed):
        generator = torch.Generator().manual_seed(seed)
        return algo.act(obs, state, explore=True, generator=generator).action

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))


def test_the_gumbel_temperature_falls_by_the_epoch():
    prior = ("use_categorical=true", "categorical_temp_anneal_step=0.25")
    algo = make(("algo.vae.enabled=true", *(f"algo.vae.prior.{key}" for key in prior)))
    batch = algo.process_batch_for_training(batch_of(torch.ones(8, 1, 2), torch.ones(8, 1, 2)))
    infos = [algo.train_on_batch(batch, epoch) for epoch in (1, 2, 9)]
    assert [float(info["Gumbel_Temperature"]) for info in infos] == pytest.approx([0.75, 0.5, 0.3])


PRIORS = {
    "normal": (),
    "learned": ("learn=true",),
    "conditioned": ("learn=true", "is_conditioned=true"),
    "gmm": ("use_gmm=true", "learn=true", "gmm_learn_weights=true"),
    "gmm_conditioned": ("use_gmm=true", "learn=true", "is_conditioned=true"),
    "categorical": ("use_categorical=true",),
    "categorical_learned": ("use_categorical=true", "learn=true", "is_conditioned=true"),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_every_prior_learns_a_linear_expert(prior):
    keys = ("enabled=true", "kl_weight=0.1", *(f"prior.{key}" for key in prior))
    algo = make([f"algo.vae.{key}" for key in keys])
    rng = np.random.default_rng(0)
    for _ in range(80):  # after 50 errors are at most 0.20
        obs = rng.uniform(-0.8, 0.8, size=(64, 1, 2)).astype(np.float32)
        batch = batch_of(obs, obs[..., ::-1].copy())
        algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    algo.set_eval()
    obs = torch.tensor([[0.5, -0.5], [-0.3, 0.6]])
    torch.testing.assert_close(algo.get_action({"state": obs}), obs.flip(-1), atol=0.25, rtol=0)


def test_the_first_updates_warm_up():
    """Warm-up over 4 updates to 0.01: rates 0, 0.0025, 0.005 before updates 1, 2, 3."""
    algo = make(("algo.optim_params.policy.learning_rate.warmup_steps=4",))
    batch = algo.process_batch_for_training(batch_of(torch.ones(8, 1, 2), torch.ones(8, 1, 2)))
    before = [p.detach().clone() for p in algo.nets.parameters()]
    algo.train_on_batch(batch, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, algo.nets.parameters(), strict=True))
    rates = []
    for _ in range(2):
        rates.append(algo.optimizers["policy"].param_groups[0]["lr"])
        algo.train_on_batch(batch, 1)
    assert rates == pytest.approx([0.0025, 0.005])
