"""Gradient steps of several networks, their state, the updates in an epoch."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from imitate import load_config
from imitate.algo.base.optimization import LearningRule, Optimization, updates_per_epoch
from imitate.config import OptimizerConfig
from imitate.errors import ConfigError
from imitate.models.optim import EMA


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(2))


def rule(max_grad_norm=None, num_epochs=4, **learning_rate):
    rate = {"initial": 0.1, **learning_rate}
    return LearningRule(
        OptimizerConfig.model_validate({"learning_rate": rate}), num_epochs, max_grad_norm
    )


def nets():
    return nn.ModuleDict({"actor": Weight(), "critic": Weight()})


def both(networks, **settings):
    rules = {"actor": rule(), "critic": rule(max_grad_norm=0.5)}
    return Optimization(networks, rules, torch.device("cpu"), **settings)


def slope(networks, name, *gradient):
    return (networks[name].value * torch.tensor(gradient)).sum()


def test_a_step_changes_one_network_and_returns_the_norm_before_clipping():
    networks = nets()
    optimization = both(networks)
    assert optimization.step("critic", slope(networks, "critic", 3.0, 4.0)).item() == 5.0
    torch.testing.assert_close(networks["critic"].value.data, torch.tensor([-0.1, -0.1]))
    torch.testing.assert_close(networks["critic"].value.grad, torch.tensor([0.3, 0.4]))
    assert networks["actor"].value.tolist() == [0.0, 0.0]
    optimization.step("actor", slope(networks, "actor", 3.0, 4.0))
    assert networks["actor"].value.grad.tolist() == [3.0, 4.0]


def test_each_second_of_two_accumulated_losses_steps_by_their_mean():
    networks = nets()
    optimization = both(networks, accumulate=2)
    optimization.step("actor", slope(networks, "actor", 2.0, 0.0))
    optimization.step("critic", slope(networks, "critic", 1.0, 1.0))
    assert networks["actor"].value.tolist() == [0.0, 0.0]
    optimization.step("actor", slope(networks, "actor", 4.0, -2.0))
    assert networks["actor"].value.grad.tolist() == [3.0, -1.0]
    torch.testing.assert_close(networks["actor"].value.data, torch.tensor([-0.1, 0.1]))
    assert networks["critic"].value.tolist() == [0.0, 0.0]


def test_an_added_loss_trains_both_networks_at_the_step_of_its_owner():
    networks = nets()
    optimization = both(networks)
    product = (networks["critic"].value * torch.tensor([2.0, 1.0])).sum()
    optimization.add("actor", "critic", slope(networks, "actor", 0.0, 4.0) + product)
    optimization.step("critic", slope(networks, "critic", 0.1, 0.1))  # not the owner's
    # gradients (3, 4) of the actor and (2, 1) of the critic have the norm sqrt(30)
    norm = optimization.step("actor", slope(networks, "actor", 3.0, 0.0))
    assert norm.item() == pytest.approx(30**0.5)
    assert networks["actor"].value.grad.tolist() == [3.0, 4.0]
    assert networks["critic"].value.grad.tolist() == [2.0, 1.0]
    # the rate of both is 0.1; the critic has made its own step before
    torch.testing.assert_close(networks["actor"].value.data, torch.tensor([-0.1, -0.1]))
    assert networks["critic"].value[0] < -0.15
    optimization.step("actor", slope(networks, "actor", 1.0, 0.0))
    assert networks["actor"].value.grad.tolist() == [1.0, 0.0]


def test_an_added_loss_without_a_step_is_dropped():
    networks = nets()
    optimization = both(networks)
    optimization.add("actor", "critic", slope(networks, "critic", 1.0, 1.0))
    optimization.drop_added()
    optimization.step("actor", slope(networks, "actor", 1.0, 0.0))
    assert networks["critic"].value.tolist() == [0.0, 0.0]


def test_the_average_follows_the_steps_of_its_network_alone():
    networks = nets()
    average = EMA(networks, decay=0.5)
    optimization = both(networks, average=average, averaged="actor")
    optimization.step("critic", slope(networks, "critic", 1.0, 1.0))
    assert average.num_updates == 0
    optimization.step("actor", slope(networks, "actor", 1.0, 1.0))
    assert average.num_updates == 1


def test_gradients_are_shared_before_they_are_clipped():
    networks = nets()
    optimization = both(networks)

    @contextmanager
    def tenfold(weights):
        yield
        torch._foreach_mul_([weight.grad for weight in weights], 10.0)

    optimization.share_gradients = tenfold
    assert optimization.step("critic", slope(networks, "critic", 3.0, 4.0)).item() == 50.0
    torch.testing.assert_close(networks["critic"].value.grad, torch.tensor([0.3, 0.4]))


def test_a_resumed_optimization_goes_on_as_the_first():
    def learn(optimization, networks):
        optimization.step("actor", slope(networks, "actor", 1.0, -3.0))

    first = nets()
    rates = {"scheduler_type": "multistep", "epoch_schedule": [1], "decay_factor": 0.5}
    rules = {"actor": rule(**rates)}
    ours = Optimization(first, rules, torch.device("cpu"), updates_per_epoch=2)
    learn(ours, first)
    second = copy.deepcopy(first)
    theirs = Optimization(second, rules, torch.device("cpu"), updates_per_epoch=2)
    theirs.load_state_dict(ours.state_dict())
    assert ours.learning_rates() == {"Optimizer/actor_lr": 0.1}
    for optimization, networks in ((ours, first), (theirs, second)):
        learn(optimization, networks)
        assert optimization.learning_rates() == {"Optimizer/actor_lr": 0.05}
    assert torch.equal(first["actor"].value, second["actor"].value)
    moments = ours.optimizers["actor"].state[first["actor"].value]["exp_avg"]
    other = theirs.optimizers["actor"].state[second["actor"].value]["exp_avg"]
    assert torch.equal(moments, other)
    assert moments is not other


@pytest.mark.parametrize(
    ("algo", "train", "updates"),
    [
        ("sac", {}, 100),
        ("bc", {"gradient_accumulation": 3}, 33),
        ("sac", {"online": {"enabled": True, "env": "Pendulum-v1", "update_ratio": 0.25}}, 25),
    ],
)
def test_updates_in_an_epoch_of_a_hundred_steps(algo, train, updates):
    tree = {"algo_name": algo, "experiment": {"epoch_every_n_steps": 100}, "train": train}
    assert updates_per_epoch(load_config(tree), rollouts=False) == updates


def test_an_epoch_without_a_number_of_steps_is_refused():
    tree = {"algo_name": "bc", "experiment": {"epoch_every_n_steps": None}}
    with pytest.raises(ConfigError, match=r"experiment\.epoch_every_n_steps is null"):
        updates_per_epoch(load_config(tree), rollouts=False)
