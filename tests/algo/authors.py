"""Losses and gradients recorded from authors' code (tools/record), and their comparison with those of ours."""

import json
import re
from pathlib import Path

import numpy as np
import torch


def recorded(name):
    """The numbers of a file of `fixtures`, as a function from the beginning of a name to {rest of the name: tensor}."""
    with np.load(Path(__file__).parent / "fixtures" / name) as file:
        shapes, values = json.loads(file["shapes"].item()), file["values"]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = zip(shapes.items(), np.split(values, ends[:-1]), strict=True)
    numbers = {key: torch.from_numpy(part.reshape(shape)).double() for (key, shape), part in parts}

    def below(start):
        return {
            key.removeprefix(start): value
            for key, value in numbers.items()
            if key.startswith(start)
        }

    return below


def as_ours(tensors, algo, names, transposed):
    """The authors' weights or gradients that we have too, under our names and in our layout.

    `names` are replacements of patterns, in order; the matrices of the networks `transposed` are transposed.
    """
    shapes = {name: weight.shape for name, weight in algo.nets.named_parameters()}
    found = {}
    for name, value in tensors.items():
        for pattern, word in names.items():
            name = re.sub(pattern, word, name)
        plain = name.startswith(transposed) and value.dim() == 2
        if name in shapes:
            found[name] = (value.T if plain else value).reshape(shapes[name])
    return found


def assert_gradients(algo, wanted, factor=lambda name: 1.0):
    """Each trained weight has the wanted gradient, up to the factor of its loss."""
    trained = {
        name: weight.grad for name, weight in algo.nets.named_parameters() if "_target" not in name
    }
    assert trained.keys() == wanted.keys()
    for name, theirs in wanted.items():
        gradient = theirs * factor(name)
        scale = gradient.abs().max().item()
        torch.testing.assert_close(trained[name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)
