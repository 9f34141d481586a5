"""Optimizers, learning-rate schedules and gradient steps of an algorithm's networks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.slots.advantage import Advantage
from imitate.algo.slots.auxiliary import Auxiliary
from imitate.algo.slots.dynamics import Dynamics
from imitate.algo.slots.reward_weights import RewardWeights
from imitate.config import Config
from imitate.errors import ConfigError
from imitate.models.optim import (
    EMA,
    ShareGradients,
    backward,
    is_plain,
    make_optimizer,
    make_scheduler,
)


@dataclass(frozen=True)
class LearningRule:
    """Training settings of one network.

    Attributes:
        config: the ``OptimizerConfig``.
        num_epochs: number of epochs in which the network is trained; a cosine schedule ends with the last.
        max_grad_norm: L2 norm to which gradients are clipped; None: no clipping.
    """

    config: Any
    num_epochs: int
    max_grad_norm: float | None


class Optimization:
    """Optimizers and schedules of the networks that are trained.

    Args:
        nets: networks by name.
        rules: settings by the name of each network that is trained.
        device: device of the weights.
        updates_per_epoch: number of optimizer steps of a network per epoch.
        accumulate: number of losses whose mean gradient makes one optimizer step.
        average: moving average of ``nets``, or None.
        averaged: name of the network whose gradient steps update the average.

    Attributes:
        watch: called at each step with the network's name, its weights and its gradient norm; None: not called.
        optimizers: optimizers by network.
        schedulers: schedules by network, stepped after each optimizer step.
        share_gradients: averages gradients over the processes that train together; None with a single process.
        share_weights: copies weights and buffers of the first process to the other processes, for values that are
            learned without gradients.
    """

    def __init__(
        self,
        nets: nn.ModuleDict,
        rules: Mapping[str, LearningRule],
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
        self.watch: Callable[[str, list[nn.Parameter], Tensor], None] | None = None
        self.share_gradients: ShareGradients | None = None
        self.share_weights: Callable[[nn.Module], None] | None = None
        self._nets, self._rules = nets, rules
        self._average, self._averaged = average, averaged
        self._accumulate = accumulate
        self._parts = dict.fromkeys(rules, 0)
        self._added: dict[str, list[tuple[str, Tensor]]] = {}
        self._recorded: list[str] | None = None

    def add(self, name: str, other: str, loss: Tensor) -> None:
        """Add a loss of network ``other`` to the next loss of network ``name``, whose step then updates both networks.

        The gradients of both networks are computed in one backward pass, and clipped together.
        """
        self._added.setdefault(name, []).append((other, loss))

    def drop_added(self) -> None:
        """Discard losses of :meth:`add` that no step has used yet."""
        self._added.clear()

    def step(self, name: str, loss: Tensor) -> Tensor:
        """Make a gradient step of one network, and of networks whose losses were added by :meth:`add`.

        If gradients are accumulated over n losses, only every n-th call makes a step, with the mean of n gradients.

        Returns:
            detached L2 norm of the network's accumulated gradients before clipping, on the device, not synchronized.
        """
        number, names = self._parts[name], [name]
        self._parts[name] = (number + 1) % self._accumulate
        for other, more in self._added.pop(name, ()):
            names.append(other)
            loss = loss + more
        optimizers = [self.optimizers[each] for each in names]
        norm = backward(
            loss,
            (
                weight
                for optimizer in optimizers
                for group in optimizer.param_groups
                for weight in group["params"]
            ),
            self._rules[name].max_grad_norm,
            self.share_gradients,
            (number, self._accumulate),
        )
        if self._parts[name] > 0:
            return norm
        if self.watch is not None:
            self.watch(
                name, [x for group in optimizers[0].param_groups for x in group["params"]], norm
            )
        for each, optimizer in zip(names, optimizers, strict=True):
            optimizer.step()
            if self._recorded is None:
                self.advance(each)
            else:
                self._recorded.append(each)
        return norm

    def advance(self, name: str) -> None:
        """Advance a network's learning-rate schedule, and the weight average, after a step of its optimizer."""
        self.schedulers[name].step()
        if self._average is not None and self._averaged == name:
            self._average.update(self._nets)

    @contextmanager
    def recording(self, rates: Sequence[Sequence[Tensor]]) -> Iterator[list[str]]:
        """Make steps read learning rates from tensors; yield a list to which each step adds its network's name.

        Args:
            rates: learning rates on the device by optimizer and group of weights.
        """
        self._recorded = []
        for optimizer, own in zip(self.optimizers.values(), rates, strict=True):
            optimizer.rates = own  # type: ignore[attr-defined]
        try:
            yield self._recorded
        finally:
            self._recorded = None
            for optimizer in self.optimizers.values():
                optimizer.rates = None  # type: ignore[attr-defined]

    @property
    def can_be_recorded(self) -> bool:
        """True if :meth:`step` can be captured in a CUDA graph.

        This requires one process, no gradient accumulation, and fused optimizers whose kernels take the learning rate
        as a tensor.
        """
        alone = self.share_gradients is None and self._accumulate == 1 and self.watch is None
        return alone and all(map(is_plain, self.optimizers.values()))

    def learning_rates(self) -> dict[str, float]:
        """Return the current learning rate of each network under its logged name."""
        return {
            f"Optimizer/{name}_lr": float(optimizer.param_groups[0]["lr"])
            for name, optimizer in self.optimizers.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all optimizers and schedules, without gradients that are not applied yet."""
        return {
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "schedulers": {name: each.state_dict() for name, each in self.schedulers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        for name, optimizer in self.optimizers.items():
            # copied, because torch keeps the given tensors and would update them in place
            optimizer.load_state_dict(deepcopy(state["optimizers"][name]))
        for name, scheduler in self.schedulers.items():
            own, saved = scheduler.state_dict(), state["schedulers"][name]
            for key in ("last_epoch", "_step_count"):
                if type(saved[key]) is not int or not 0 <= saved[key] < 2**53:
                    raise ValueError(
                        f"the saved learning-rate schedule has '{key}' {saved[key]!r}; wanted a whole number of at "
                        "least 0"
                    )
                own[key] = saved[key]
            # copy only these keys: torch would let a key of the file replace a method of the scheduler
            for key in ("base_lrs", "_last_lr"):
                own[key] = [float(rate) for rate in saved[key]]
            scheduler.load_state_dict(own)


def rules_of(algo: Any) -> dict[str, LearningRule]:
    """Return the settings of each network that an :class:`~imitate.algo.base.algo.Algo` trains, by name."""
    with algo.schedules.unread():
        return {
            name: LearningRule(config, algo._epochs_of(name), algo._max_grad_norm(name))
            for name, config in algo._optim_params().items()
        }


def sections_of(config: Any, nets: nn.ModuleDict) -> dict[str, Any]:
    """Return the ``OptimizerConfig`` of each network that is trained, by name.

    Args:
        config: the algorithm's section; ``optim_params`` contains optimizers by network.
        nets: the existing networks; slots and models have their own optimizer sections.
    """
    section = config.get("optim_params", {})
    own = {name: section[name] for name in section if name in nets}
    return own | {
        name: net.config.optimizer
        for name, net in nets.items()
        if isinstance(net, Advantage | Auxiliary | Dynamics | RewardWeights)
    }


def updates_per_epoch(config: Config, rollouts: bool) -> int:
    """Return the number of optimizer steps per epoch of ``experiment.epoch_every_n_steps`` batches or steps.

    Args:
        config: the whole configuration.
        rollouts: true if the algorithm learns from whole rollouts, in several passes. An algorithm that decides on
            ``n_step`` actions at once has fewer samples per rollout.

    Raises:
        ConfigError: the number of steps per epoch is null.
    """
    steps, train = config.experiment.epoch_every_n_steps, config.train
    if steps is None:
        raise ConfigError(
            "experiment.epoch_every_n_steps is null (one pass over the data): outside of `imitate train`, which "
            "counts the batches, set the number of steps per epoch"
        )
    if rollouts:
        samples = steps // int(config.algo.get("n_step", 1))
        passes = int(config.algo["rollout_epochs"]) + int(config.algo.get("auxiliary_epochs", 0))
        return max(1, samples * passes // train.batch_size)
    if train.online.enabled:
        return max(1, int(steps * train.online.update_ratio))
    return max(1, steps // train.gradient_accumulation)
