"""The inverse model by hand."""

import pytest
import torch

from imitate.algo.slots.auxiliary import AuxiliaryContext
from imitate.algo.slots.inverse import Inverse, InverseConfig
from tests.tiny import tiny_algo


def made(action=2, choices=0, **settings):
    """A model that predicts (o, 2 o') for an observation of one number."""
    algo = tiny_algo("bc", obs={"s": 1}, action=action)
    config = InverseConfig(type="inverse", layer_dims=(), **settings)
    model = Inverse(config, AuxiliaryContext(algo.encoding, action, choices, algo.nets))
    weight = torch.zeros(action, 2)
    weight[0, 0], weight[1, 1] = 1.0, 2.0
    model.model[1].weight.data, model.model[1].bias.data = weight, torch.zeros(action)
    return model


def obs(*numbers):
    return {"s": torch.tensor([[float(x)] for x in numbers])}


def test_the_squared_error_of_known_transitions():
    batch = {
        "obs": obs(1, 2),
        "next_obs": obs(0.5, 9),
        "actions": torch.tensor([[0.0, 4.0], [7.0, 7.0]]),
        "mask": torch.tensor([True, False]),
    }
    # predicted (1, 1): errors 1 and -3
    assert made().loss(batch)[0].item() == pytest.approx((1 + 9) / 2)
    del batch["mask"]
    # predicted (2, 18): errors -5 and 11
    assert made().loss(batch)[0].item() == pytest.approx((10 + 146) / 4)


def test_the_observation_some_steps_later():
    window = {"obs": {"s": torch.tensor([[[1.0], [5.0], [0.5]]])}, "mask": torch.ones(1, 2)}
    batch = {"obs": obs(1), "next_obs": obs(5), "actions": torch.zeros(1, 2), "window": window}
    assert made(steps=2).loss(batch)[0].item() == pytest.approx(1.0)
    window["mask"][0, 1] = 0
    assert made(steps=2).loss(batch)[0].item() == 0.0


def test_choices_come_before_numbers():
    batch = {"obs": obs(1), "next_obs": obs(0.5), "actions": torch.tensor([[0.0, 1.0, 3.0]])}
    # equal logits of two choices, and a number 0 in place of 3
    loss = made(action=3, choices=2).loss(batch)[0].item()
    assert loss == pytest.approx(0.6931472 + 9.0)
