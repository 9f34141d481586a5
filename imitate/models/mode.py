"""Training and evaluation mode of networks, switched quickly: online RL switches for each step of the environment."""

from __future__ import annotations

from torch import nn


def set_mode(net: nn.Module, training: bool) -> None:
    """Switch a network with all its parts, as ``net.train(training)`` does in four times the time.

    Torch's own passes each flag through ``nn.Module.__setattr__``, which first looks for weights. Parts that override
    ``train``, such as frozen encoders, decide themselves.
    """
    waiting = [net]
    while waiting:
        module = waiting.pop()
        values = module.__dict__
        if type(module).train is not nn.Module.train or "training" not in values:
            module.train(training)
            continue
        values["training"] = training
        waiting.extend(part for part in module._modules.values() if part is not None)
