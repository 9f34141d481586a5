"""Priors of soft actor-critics: densities by hand, their place in values and in the temperature, refusals."""

import math

import pytest
import torch

from imitate.algo.slots.density import last_frames
from imitate.algo.slots.frozen import FrozenPolicy
from imitate.algo.slots.prior import Prior, PriorConfig, same_action_log_prob
from imitate.errors import CheckpointError, ConfigError
from imitate.policy.checkpoint import checkpoint_dict
from imitate.system.text import PREVIOUS_ACTION
from tests.algo.conftest import (
    action_in,
    gradients,
    learn,
    losses,
    make_algo,
    only,
    set_actor,
    two_transitions,
)
from tests.algo.test_frozen import units
from tests.tiny import tiny_algo

NARROW = {"net": {"gaussian": {"min_std": 1e-6, "max_std": 1e-6}}}


def normal(distance, std):
    return -0.5 * (distance / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))


def clone(slope=2.0, std=0.1, kind="gaussian", **section):
    """BC whose mean is tanh(slope x)."""
    head = {"gaussian": {"init_std": std, "fixed_std": True}, "gmm": {"num_modes": 2}}[kind]
    algo = make_algo("bc", {kind: {"enabled": True, **head}, **section})
    set_actor(algo.nets["policy"], slope)
    algo.preprocess = units()
    return algo


def frozen(algo, around, **options):
    policy = FrozenPolicy(1, key="algo.prior", needs_density=True, **options)
    policy.adopt(checkpoint_dict(algo, env_metadata={}, shape_metadata={}), around)
    return policy


def see(*values):
    return {"s": torch.tensor([[float(value)] for value in values])}


def test_a_clone_s_density_is_in_the_outer_units():
    algo = clone()
    algo.preprocess = units(obs=(2.0, 4.0), action=(0.5, 0.25))
    around = units(obs=(1.0, 2.0), action=(0.0, 2.0))
    # Around it 1.5 means 4, which is 0.5 to the clone; actions: 2 y = 0.5 + 0.25 a.
    found = frozen(algo, around).distribution(see(1.5), around)
    mean, std = (0.5 + 0.25 * math.tanh(1.0)) / 2, 0.1 * 0.25 / 2
    assert found.mean.item() == pytest.approx(mean)
    action = torch.tensor([[mean + 0.02]])
    assert found.log_prob(action).item() == pytest.approx(normal(0.02, std), abs=1e-4)


def test_a_mixture_and_a_policy_with_a_memory_have_densities():
    mixture = clone(kind="gmm")
    mixture.nets["policy"].head.mean.bias.data = torch.tensor([0.3, -0.3])
    policy = frozen(mixture, units())
    expected = mixture.policy.head(torch.zeros(1, 1))
    action = torch.tensor([[0.2]])
    assert policy.distribution(see(0.0), units()).log_prob(action) == expected.log_prob(action)
    rnn = {"enabled": True, "hidden_dim": 4, "horizon": 4}
    settings = {"gmm": {"enabled": True}, "rnn": rnn}
    recurrent = tiny_algo("bc", obs={"s": 1}, action=1, algo=settings, train={"seq_length": 4})
    recurrent.set_eval()
    recurrent.preprocess = units()
    frames = torch.tensor([[[1.0], [-2.0], [3.0]]])
    features, _ = recurrent.nets["policy"]({"s": frames})
    expected = recurrent.policy.head(features[:, -1]).log_prob(action)
    found = frozen(recurrent, units()).distribution({"s": frames}, units())
    assert found.log_prob(action).item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(("count", "chosen"), [(2, [1, 2]), (4, [0, 0, 1, 2]), (1, 2)])
def test_the_newest_frames_are_taken(count, chosen):
    found = last_frames({"s": torch.arange(3.0).view(1, 3)}, count)["s"]
    assert found[0].tolist() == chosen


def of_clone(**settings):
    prior = Prior(PriorConfig(checkpoint="clone.pth", **settings), 1)
    ckpt = checkpoint_dict(clone(std=0.01), env_metadata={}, shape_metadata={})
    prior.policy.adopt(ckpt, units())
    return prior


def test_a_narrow_clone_is_widened_and_its_density_has_a_floor_but_keeps_its_gradient():
    actions = torch.tensor([[0.1], [0.9]], requires_grad=True)
    log_prob = of_clone(floor=-8.0).log_prob(see(0.0, 0.0), actions, units())
    # At 0.9 the density of std 0.05 would be exp(-160).
    assert log_prob.tolist() == pytest.approx([normal(0.1, 0.05), -8.0], abs=1e-4)
    log_prob.sum().backward()
    assert actions.grad.flatten().tolist() == pytest.approx([-0.1 / 0.05**2, -0.9 / 0.05**2])


def test_the_previous_action_is_likely_except_at_a_start():
    actions, previous = torch.tensor([[0.6], [0.6], [0.6]]), torch.tensor([[0.5], [-0.5], [0.5]])
    found = same_action_log_prob(actions, previous, torch.tensor([True, True, False]))

    def truncated(x, mean, std):
        def below(limit):
            return 0.5 * (1 + math.erf((limit - mean) / std / math.sqrt(2)))

        return math.exp(normal(x - mean, std)) / (below(1) - below(-1))

    flat = truncated(0.6, 0.0, 2.0)
    near = [0.1 * flat + 0.9 * truncated(0.6, mean, 0.2) for mean in (0.5, -0.5)]
    assert found.tolist() == pytest.approx([math.log(x) for x in (*near, flat)], abs=1e-5)
    prior = Prior(PriorConfig(type="same_action"), 1)
    seen = {PREVIOUS_ACTION: torch.tensor([[0.5, 1.0], [-0.5, 1.0], [0.0, 0.0]])}
    around = units(key=PREVIOUS_ACTION)
    around.unnormalize_obs = lambda key, value: value
    assert prior.log_prob(seen, actions, around).tolist() == pytest.approx(found.tolist())


@pytest.mark.parametrize("name", ["sac", "tqc", "rlpd"])
def test_values_have_the_divergence_in_place_of_the_entropy(name):
    def targets(prior):
        section = {"actor": NARROW, "temperature": {"initial": 0.5}, "prior": prior}
        algo = make_algo(name, section)
        set_actor(algo.actor, slope=0.1)
        torch.manual_seed(0)
        return algo, losses(algo, only(two_transitions(), 0, 20))

    _, plain = targets(None)
    algo, uniform = targets({"type": "uniform"})
    # log pi - log (1 / 2) in place of log pi: alpha log 2 less in the next state, discounted by 0.5.
    assert uniform["Q_Targets"] == pytest.approx(plain["Q_Targets"] - 0.5 * 0.5 * math.log(2))
    assert uniform["Entropy"] == pytest.approx(plain["Entropy"] - math.log(2))
    assert algo.entropy.target.item() == -3.0


def test_the_actor_goes_to_the_clone_and_the_checkpoint_contains_it():
    settings = {"prior": {"checkpoint": "clone.pth", "min_std": 0.1}}
    fixed = {"temperature": {"initial": 1.0, "tuned": False}}
    algo = make_algo("sac", {"actor": NARROW, **settings, **fixed})
    algo.preprocess = units()
    set_actor(algo.actor, slope=0.0)
    algo.nets["critic"].head.weight.data.zero_()
    algo.prior.policy.adopt(
        checkpoint_dict(clone(), env_metadata={}, shape_metadata={}), algo.preprocess
    )
    gradients(algo, only(two_transitions(), 0, 500))
    # -log pi_0 is (a - tanh 2)^2 / (2 0.1^2), its slope at 0 is -tanh(2) / 0.1^2.
    found = algo.actor.head.mean.bias.grad.item()
    assert found == pytest.approx(-math.tanh(2.0) / 0.01, rel=1e-3)
    copy = make_algo("sac", {"actor": NARROW, **settings, **fixed})
    copy.deserialize(algo.serialize())
    actions = torch.tensor([[0.5]])
    assert torch.equal(
        copy.prior.log_prob(see(1.0), actions, units()),
        algo.prior.log_prob(see(1.0), actions, units()),
    )


def test_choices_have_a_divergence_too():
    def values(prior):
        algo = make_algo("sac", {"num_choices": 2, "prior": prior}, action=2)
        batch = {**two_transitions(), "actions": torch.eye(2)}
        torch.manual_seed(0)
        return losses(algo, only(batch, 0))

    plain, uniform = values(None), values({"type": "uniform"})
    assert uniform["Q_Targets"] == pytest.approx(plain["Q_Targets"] - 0.5 * math.log(2))
    assert uniform["Entropy"] == pytest.approx(plain["Entropy"] - math.log(2))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "bc is deterministic, so its actions have no density: take a policy of bc with"),
        ({"vae": {"enabled": True}}, "no density of single steps"),
        (
            {"gmm": {"enabled": True}, "chunk": {"enabled": True, "size": 2, "execute": 1}},
            "no density of single",
        ),
    ],
)
def test_a_policy_without_density_is_refused(section, words):
    algo = make_algo("bc", section, seq_length=2)
    algo.preprocess = units()
    with pytest.raises(CheckpointError, match=f"algo.prior.checkpoint: .*{words}"):
        frozen(algo, units())


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"prior": {"type": "uniform", "checkpoint": "x.pth"}}, "reads no checkpoint"),
        ({"prior": {"type": "same_action"}}, "lacks previous_action: list it there, and wrap"),
        (
            {"prior": {"type": "uniform"}, "temperature": {"target_entropy": -1.0}},
            "the target is algo.prior.target_kld_per_dim",
        ),
        ({"prior": {}, "rnn": {"enabled": True}}, "which sees observations, but with algo.rnn"),
    ],
)
def test_what_contradicts_a_prior_is_refused(section, words):
    train = {"seq_length": 4} if "rnn" in section else {}
    with pytest.raises(ConfigError, match=words):
        make_algo("sac", section, **train)


@pytest.mark.nightly
def test_without_rewards_the_policy_becomes_the_clone():
    rate = {"learning_rate": {"initial": 3e-3}}
    section = {
        "prior": {"checkpoint": "clone.pth", "min_std": 0.2},
        "temperature": {"initial": 0.1, "tuned": False},
        "optim_params": {"actor": rate, "critic": rate},
    }
    algo = make_algo("sac", section, hidden=(16,))
    algo.preprocess = units()
    algo.prior.policy.adopt(
        checkpoint_dict(clone(), env_metadata={}, shape_metadata={}), algo.preprocess
    )
    states = torch.linspace(-1.5, 1.5, 64).unsqueeze(-1)
    batch = {
        **two_transitions(discounts=torch.zeros(64), rewards=torch.zeros(64)),
        **{"obs": {"s": states}, "next_obs": {"s": states}, "actions": torch.zeros(64, 1)},
    }
    learn(algo, batch, 300)
    for state in (-0.5, 0.25, 0.5):
        assert abs(action_in(algo, state) - math.tanh(2 * state)) < 0.4
