"""Optimizers and learning-rate schedules of an algorithm's networks, and their gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.slots.auxiliary.auxiliary import Auxiliary
from imitate.algo.slots.dynamics.dynamics import Dynamics
from imitate.config import Config
from imitate.errors import ConfigError
from imitate.models.ema import EMA
from imitate.models.optim import ShareGradients, backward, make_optimizer, make_scheduler


@dataclass(frozen=True)
class Rule:
    """How one network learns.

    Attributes:
        config: an ``OptimizerConfig``.
        num_epochs: epochs in which it learns, at whose end a cosine schedule ends.
        max_grad_norm: L2 norm to which its gradients are scaled down; None: never.
    """

    config: Any
    num_epochs: int
    max_grad_norm: float | None


class Optimization:
    """The optimizer and the schedule of each network that learns.

    Args:
        nets: networks by name.
        rules: by the names of those that learn.
        device: where the weights live.
        updates_per_epoch: optimizer steps of a network per epoch.
        accumulate: losses whose mean gradient makes one optimizer step.
        average: moving average of ``nets``, where there is one.
        averaged: the network whose steps it follows.

    Attributes:
        optimizers: by network.
        schedulers: by network; stepped after each optimizer step.
        share_gradients: averages gradients over the processes that train together; None where there is one.
        share_weights: gives them the weights and buffers of the first, for what is learned without a gradient.
    """

    def __init__(
        self,
        nets: nn.ModuleDict,
        rules: Mapping[str, Rule],
        device: torch.device,
        updates_per_epoch: int = 1,
        accumulate: int = 1,
        average: EMA | None = None,
        averaged: str = "",
    ) -> None:
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: make_optimizer(nets[name], rule.config, device) for name, rule in rules.items()
        }
        self.schedulers: dict[str, torch.optim.lr_scheduler.LRScheduler] = {
            name: make_scheduler(
                self.optimizers[name],
                rule.config,
                steps_per_epoch=updates_per_epoch,
                num_epochs=rule.num_epochs,
            )
            for name, rule in rules.items()
        }
        self.share_gradients: ShareGradients | None = None
        self.share_weights: Callable[[nn.Module], None] | None = None
        self._nets, self._rules = nets, rules
        self._average, self._averaged = average, averaged
        self._accumulate = accumulate
        self._parts = dict.fromkeys(rules, 0)

    def step(self, name: str, loss: Tensor) -> Tensor:
        """Backward, clip, step one network's optimizer and schedule.

        Where gradients are accumulated over n losses, only each n-th call steps, by the mean of n gradients.

        Returns:
            detached L2 norm of the network's gradients so far, before clipping, on the device, not synchronized.
        """
        number, optimizer = self._parts[name], self.optimizers[name]
        self._parts[name] = (number + 1) % self._accumulate
        norm = backward(
            loss,
            (weight for group in optimizer.param_groups for weight in group["params"]),
            self._rules[name].max_grad_norm,
            self.share_gradients,
            (number, self._accumulate),
        )
        if self._parts[name] > 0:
            return norm
        optimizer.step()
        self.schedulers[name].step()
        if self._average is not None and self._averaged == name:
            self._average.update(self._nets)
        return norm

    def learning_rates(self) -> dict[str, float]:
        """Present learning rate of each network, as it is logged."""
        return {
            f"Optimizer/{name}_lr": float(optimizer.param_groups[0]["lr"])
            for name, optimizer in self.optimizers.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """State of all optimizers and schedules. Gradients that are not applied yet are left out."""
        return {
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "schedulers": {name: each.state_dict() for name, each in self.schedulers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        for name, optimizer in self.optimizers.items():
            # A copy: torch keeps the given tensors and would update them in place.
            optimizer.load_state_dict(deepcopy(state["optimizers"][name]))
        for name, scheduler in self.schedulers.items():
            scheduler.load_state_dict(state["schedulers"][name])


def sections_of(config: Any, nets: nn.ModuleDict) -> dict[str, Any]:
    """``OptimizerConfig`` of each network that learns, by name.

    Args:
        config: the algorithm's section; ``optim_params`` has the optimizers of networks by name.
        nets: those that there are; auxiliaries and models name their own optimizers.
    """
    section = config.get("optim_params", {})
    own = {name: section[name] for name in section if name in nets}
    return own | {
        name: net.config.optimizer
        for name, net in nets.items()
        if isinstance(net, Auxiliary | Dynamics)
    }


def updates_per_epoch(config: Config, rollouts: bool) -> int:
    """Optimizer steps of a network in an epoch of ``experiment.epoch_every_n_steps`` batches or environment steps.

    Args:
        config: the whole configuration.
        rollouts: the algorithm learns from whole rollouts, in several passes.

    Raises:
        ConfigError: the number of steps is null.
    """
    steps, train = config.experiment.epoch_every_n_steps, config.train
    if steps is None:
        raise ConfigError(
            "experiment.epoch_every_n_steps is null (one pass over the data): outside of `imitate train`, which "
            "counts the batches, set the number of steps per epoch"
        )
    if rollouts:
        return max(1, int(steps * config.algo["rollout_epochs"]) // train.batch_size)
    if train.online.enabled:
        return max(1, int(steps * train.online.update_ratio))
    return max(1, steps // train.gradient_accumulation)
