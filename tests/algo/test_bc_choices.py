"""BC of choices, and of choices with numbers: likelihoods by hand, and experts that are learned."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_config


def make(action, *overrides, choices=2, hidden=()):
    rate = {"policy": {"learning_rate": {"initial": 0.02}}}
    section = {"num_choices": choices, "optim_params": rate}
    return tiny_algo("bc", *overrides, obs={"s": 1}, action=action, hidden=hidden, algo=section)


def batch_of(algo, states, actions, mask=None):
    batch = {"obs": {"s": states.view(-1, 1, 1)}, "actions": actions.unsqueeze(1)}
    return algo.process_batch_for_training(batch if mask is None else {**batch, "pad_mask": mask})


def test_the_cross_entropy_of_choices_by_hand():
    """Logits log 3 times the state, and 0."""
    algo = make(2)
    head = algo.policy.head.logits
    head.weight.data, head.bias.data = torch.tensor([[math.log(3.0)], [0.0]]), torch.zeros(2)
    batch = batch_of(algo, torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    loss = algo.train_on_batch(batch, 1, validate=True)["Loss"]
    assert loss.item() == pytest.approx(-(math.log(0.25) + math.log(0.5)) / 2)


def test_the_likelihood_of_a_choice_with_its_number_by_hand():
    """The first choice has probability 3/4; its number has mean -1, the other's 1, before the tanh; both std 1."""
    settings = ("algo.gaussian.init_std=1.0", "algo.gaussian.fixed_std=true")
    algo = make(3, *settings)
    head = algo.policy.head
    for linear in (head.choice.logits, head.numbers.mean):
        torch.nn.init.zeros_(linear.weight)
    head.choice.logits.bias.data = torch.tensor([math.log(3.0), 0.0])
    head.numbers.mean.bias.data = torch.tensor([-1.0, 1.0])
    taken = math.tanh(0.5)
    batch = batch_of(algo, torch.zeros(1), torch.tensor([[1.0, 0.0, taken]]))
    # the number before the tanh is 0.5, 1.5 from the mean; its density is divided by 1 - a^2
    number = -0.5 * 1.5**2 - 0.5 * math.log(2 * math.pi) - math.log(1 - taken**2)
    loss = algo.train_on_batch(batch, 1, validate=True)["Loss"]
    assert loss.item() == pytest.approx(-math.log(0.75) - number, abs=1e-4)
    algo.set_eval()
    action = algo.get_action({"s": torch.zeros(1, 1)})
    torch.testing.assert_close(action, torch.tensor([[1.0, 0.0, math.tanh(-1.0)]]))


@pytest.mark.parametrize("numbers", [0, 1])
def test_it_clones_an_expert_whose_choice_and_number_depend_on_the_state(numbers):
    """The second choice above 0; the number is 0.6 with the first choice and -0.6 with the second."""
    algo = make(2 + numbers, hidden=(16,))
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        states = torch.rand(64, generator=generator) * 2 - 1
        second = (states > 0).float()
        actions = torch.stack([1 - second, second, 0.6 - 1.2 * second][: 2 + numbers], 1)
        info = algo.train_on_batch(batch_of(algo, states, actions), 1)
    assert info["Loss"].isfinite()
    algo.set_eval()
    found = algo.act({"s": torch.tensor([[-0.7], [0.7]])}, algo.initial_state(2)).action
    assert found[:, :2].tolist() == [[1, 0], [0, 1]]
    assert not numbers or ((found[:, 2] - torch.tensor([0.6, -0.6])).abs() < 0.2).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algo.chunk.enabled=true", "predict only continuous actions"),
        ("algo.gmm.enabled=true", "predict only continuous actions"),
    ],
)
def test_what_it_does_not_combine_with_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config("bc", "algo.num_choices=2", change, obs={"s": 1})
    with refused("algo.num_choices is 4, but actions have 2 numbers", error=ConfigError):
        make(2, choices=4)
