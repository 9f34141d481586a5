"""Optimizers, learning-rate schedules, computation of gradients, and the moving average of weights.

The warm-up of the moving average is as in Diffusion Policy (Chi et al. 2023, arXiv:2303.04137): the average follows
the weights quickly at first and more and more slowly later.
"""

import copy
import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from imitate.errors import CheckpointError

SCHEDULERS = ("constant", "multistep", "linear", "cosine")


def lr_factor(
    step: int,
    *,
    scheduler_type: str,
    warmup_steps: int = 0,
    total_steps: int = 0,
    num_cycles: float = 0.5,
    decay_factor: float = 0.1,
    epoch_schedule: Sequence[int] = (),
    steps_per_epoch: int = 1,
    every_batch: bool = True,
) -> float:
    """Return the factor on the initial learning rate for update ``step``, counted from 0.

    Args:
        step: number of updates done so far.
        scheduler_type: one of :data:`SCHEDULERS`.
        warmup_steps: number of updates during which the factor rises linearly from 0. The schedule counts these updates
            too, except ``cosine``, which starts after the warm-up.
        total_steps: updates of the whole training (for cosine).
        num_cycles: number of cosine waves until ``total_steps``; with 0.5 the factor falls from 1 to 0.
        decay_factor: factor at each epoch of ``epoch_schedule`` (multistep), or reached at the first of these epochs
            (linear).
        epoch_schedule: epochs of the decay (multistep, linear); if empty, the factor is constant.
        steps_per_epoch: updates per epoch.
        every_batch: linear and cosine change at every update; if false, only between epochs. Multistep always changes
            between epochs, and the warm-up always at every update.
    """
    if scheduler_type not in SCHEDULERS:
        raise ValueError(f"unknown scheduler_type '{scheduler_type}'; wanted one of {SCHEDULERS}")
    warmup = step / warmup_steps if step < warmup_steps else 1.0
    steps_per_epoch = max(1, steps_per_epoch)
    if not every_batch:
        step -= step % steps_per_epoch
    if scheduler_type == "cosine":
        if warmup < 1.0:
            return warmup
        progress = max(0, step - warmup_steps) / max(1, total_steps - warmup_steps)
        return max(0.0, 0.5 * (1.0 + math.cos(2.0 * math.pi * num_cycles * progress)))
    if scheduler_type == "multistep":
        epoch = step // steps_per_epoch
        return warmup * float(decay_factor) ** bisect_right(sorted(epoch_schedule), epoch)
    if scheduler_type == "linear" and epoch_schedule:
        done = min(1.0, step / (steps_per_epoch * max(1, epoch_schedule[0])))
        return warmup * (1.0 + (decay_factor - 1.0) * done)
    return warmup


_FUSED_DEVICES = {"cpu", "cuda", "mps"} & set(_get_fused_kernels_supported_devices())

ShareGradients = Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]]
"""Returns a context for a backward pass, in which gradients of the weights are averaged over all processes."""


class _ContiguousViews(torch.optim.Optimizer):
    """Base class of Adam and AdamW that gives the fused CPU kernel contiguous views of the weights.

    The kernel copies tensors that are not contiguous, which takes three times as long as the step itself for
    convolutions with channels last. The views share the memory of the weights.

    Attributes:
        rates: learning rates on the device, one per group of weights, used in place of each group's ``lr``; or None.
    """

    rates: Sequence[Tensor] | None = None

    def _init_group(self, group: dict[str, Any], params: list[Tensor], *others: Any) -> Any:
        found = super()._init_group(group, params, *others)  # type: ignore[misc]
        if params and params[0].device.type == "cpu":
            orders = [_memory_order(weight) for weight in params]
            for tensors in (params, *others):
                if isinstance(tensors, list) and len(tensors) == len(orders):
                    _reorder(tensors, orders)
        return found

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of weights, as torch's optimizers do."""
        _undecorated(super().add_param_group)(self, param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the weights and call the hooks, as torch does."""
        if any(self._step_hooks()):
            return self.profile_hook_step(_ContiguousViews._step)(self, closure)
        return self._step(closure)

    # keeps torch from wrapping the method for its profiler, which takes as long as the step of a small network
    step.hooked = True  # type: ignore[attr-defined]

    def _step_hooks(self) -> tuple[dict[int, Any], ...]:
        """Return the hooks around a step: this optimizer's, then the global hooks for all optimizers."""
        own = (self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks)
        return (
            *own,
            torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        )

    @torch.no_grad()
    def _step(self, closure: Callable[[], float] | None = None) -> float | None:
        if closure is None and is_plain(self):
            for number, group in enumerate(self.param_groups):
                self._fused_step(group, group["lr"] if self.rates is None else self.rates[number])
            return None
        loss: float | None = _undecorated(super().step)(self, closure)
        return loss

    def _fused_step(self, group: dict[str, Any], rate: float | Tensor) -> None:
        """Call the fused kernel directly; for a small network, torch's code before it takes longer than the kernel."""
        lists: list[list[Tensor]] = [[] for _ in range(6)]
        self._init_group(group, *lists)
        weights, gradients, means, squares, largest, steps = lists
        if not weights:
            return
        if weights[0].is_cpu:
            torch._foreach_add_(steps, _ONE, alpha=1.0)
        else:
            torch._foreach_add_(steps, 1)
        kernel = torch._fused_adamw_ if isinstance(self, torch.optim.AdamW) else torch._fused_adam_
        beta1, beta2 = group["betas"]
        kernel(
            weights,
            gradients,
            means,
            squares,
            largest,
            steps,
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, as torch's optimizers do."""
        state: dict[str, Any] = _undecorated(super().state_dict)(self)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the optimizer, as torch's optimizers do, but check shapes and values first.

        Raises:
            ValueError: the shape of a moment differs from its weight's shape, so that the kernel would write beyond it,
                or a setting is not finite.
        """
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the saved optimizer has {len(groups)} groups of weights, but this network has "
                f"{len(self.param_groups)}"
            )
        numbers = [number for group in groups for number in group["params"]]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        moments = {
            number: _moments(state, weight)
            for number, weight in zip(numbers, weights, strict=True)
            if (state := state_dict["state"].get(number))
        }
        kept = [
            {**own, **_settings(group), "params": group["params"]}
            for own, group in zip(self.param_groups, groups, strict=True)
        ]
        _undecorated(super().load_state_dict)(self, {"state": moments, "param_groups": kept})


def _moments(state: Mapping[str, Any], weight: Tensor) -> dict[str, Tensor]:
    """Return step counter and moments of a weight. Raises ValueError if a moment has another shape than the weight."""
    found: dict[str, Tensor] = {"step": torch.tensor(float(state["step"]), dtype=torch.float32)}
    for name in ("exp_avg", "exp_avg_sq"):
        found[name] = torch.as_tensor(state.get(name, ()))
        if found[name].shape != weight.shape:
            raise ValueError(
                f"{name} has shape {tuple(found[name].shape)}, but its weight has shape {tuple(weight.shape)}"
            )
    return found


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of weights. Raises ValueError or TypeError if one is not a finite number."""
    found = {
        name: group[name] for name in ("lr", "eps", "weight_decay", "initial_lr") if name in group
    }
    beta1, beta2 = group["betas"]
    if not all(math.isfinite(number) for number in (*found.values(), beta1, beta2)):
        raise ValueError(
            f"the saved optimizer has settings that are not finite: {found}, betas {group['betas']}"
        )
    return {**found, "betas": (beta1, beta2)}


def _undecorated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the undecorated function of a method of torch's optimizers.

    torch wraps these methods for compiled optimizers, which are not used here. The wrappers import the compiler, which
    takes more than a second at each start.
    """
    function: Callable[..., Any] = inspect.unwrap(method.__func__)  # type: ignore[attr-defined]
    return function


_ONE = torch.ones(())


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if :meth:`step` can call the fused kernel directly for all groups of weights."""
    return all(map(_is_plain, optimizer.param_groups))


def _is_plain(group: Mapping[str, Any]) -> bool:
    """Return True for a fused group of float32 weights, all on CPUs or all on GPUs, without amsgrad or maximize."""
    options = group["amsgrad"] or group["maximize"] or isinstance(group["lr"], Tensor)
    weights = group["params"]
    return (
        bool(group["fused"])
        and not options
        and (all(weight.is_cpu for weight in weights) or all(weight.is_cuda for weight in weights))
        and all(weight.dtype is torch.float32 for weight in weights)
    )


class _Adam(_ContiguousViews, torch.optim.Adam):
    pass


class _AdamW(_ContiguousViews, torch.optim.AdamW):
    pass


def _memory_order(weight: Tensor) -> list[int] | None:
    """Return a weight's dimensions from the longest to the shortest stride; None if the weight is contiguous."""
    if weight.is_contiguous():
        return None
    return sorted(range(weight.dim()), key=weight.stride, reverse=True)


def _reorder(tensors: list[Tensor], orders: Sequence[list[int] | None]) -> None:
    """Replace tensors by views with permuted dimensions, except step counters, which have no dimensions."""
    for place, (tensor, order) in enumerate(zip(tensors, orders, strict=True)):
        if order is not None and tensor.dim() == len(order):
            tensors[place] = tensor.permute(order)


def make_optimizer(
    weights: nn.Module | Iterable[nn.Parameter], config: Any, device: torch.device | str
) -> torch.optim.Optimizer:
    """Build Adam or AdamW, fused into one kernel if torch supports it.

    Args:
        weights: a network, whose submodules may have an attribute ``lr_scale``, a factor on their learning rate; or
            weights, which all have the same learning rate. Frozen weights are not optimized.
        config: an ``OptimizerConfig``. ``regularization.L2`` is the weight decay.
        device: device of the weights.
    """
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": _Adam, "adamw": _AdamW}
    rate = config.learning_rate.initial
    by_scale = lr_scales(weights) if isinstance(weights, nn.Module) else {1.0: list(weights)}
    groups = [
        {"params": trained, "lr": rate * scale}
        for scale, group in by_scale.items()
        if (trained := [p for p in group if p.requires_grad])
    ]
    optimizer = kinds[config.optimizer_type](
        groups,
        lr=rate,
        betas=config.betas,
        weight_decay=config.regularization.L2,
        fused=torch.device(device).type in _FUSED_DEVICES,
    )
    optimizer.register_load_state_dict_post_hook(_match_layouts)
    return optimizer


def _match_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Adapt a loaded state to this machine.

    Moments get the memory layout of their weights, because fused kernels process both in one order; and the kernel is
    chosen for this device, not for the device on which the run began.
    """
    for group in optimizer.param_groups:
        group["fused"] = optimizer.defaults["fused"]
    for weight, state in optimizer.state.items():
        if optimizer.defaults["fused"] and "step" in state:
            # kernels that are not fused keep the step counter on the CPU, so a loaded counter may be there
            state["step"] = state["step"].to(weight.device)
        for name, value in state.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight).copy_(value)


def lr_scales(net: nn.Module) -> dict[float, list[nn.Parameter]]:
    """Group the weights of a network by the factor of their learning rate; the factor 1 comes first.

    The factor is the product of the attributes ``lr_scale`` of all modules that contain the weight.
    """
    scale = dict.fromkeys(net.parameters(), 1.0)
    for module in net.modules():
        factor = float(getattr(module, "lr_scale", 1.0))
        if factor != 1.0:
            for parameter in module.parameters():
                scale[parameter] *= factor
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter, factor in scale.items():
        groups.setdefault(factor, []).append(parameter)
    return groups


def make_scheduler(
    optimizer: torch.optim.Optimizer, config: Any, steps_per_epoch: int, num_epochs: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Build a learning-rate schedule that is stepped after every update; it depends only on the number of updates.

    Args:
        optimizer: optimizer whose learning rates, of all groups, are scaled.
        config: an ``OptimizerConfig``; only its section ``learning_rate`` is used.
        steps_per_epoch: number of updates per epoch.
        num_epochs: number of epochs of the whole training; a cosine schedule ends with the last.
    """
    rate = config.learning_rate

    # a plain function, because LambdaLR would save the attributes of any other callable
    def factor(step: int) -> float:
        return lr_factor(
            step,
            scheduler_type=rate.scheduler_type,
            warmup_steps=rate.warmup_steps,
            total_steps=steps_per_epoch * num_epochs,
            num_cycles=rate.num_cycles,
            decay_factor=rate.decay_factor,
            epoch_schedule=rate.epoch_schedule,
            steps_per_epoch=steps_per_epoch,
            every_batch=rate.step_every_batch,
        )

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def backward(
    loss: Tensor,
    parameters: Iterable[nn.Parameter],
    max_grad_norm: float | None = None,
    share: ShareGradients | None = None,
    part: tuple[int, int] = (0, 1),
) -> Tensor:
    """Compute the gradients for an optimizer's step, and clip them after the last part of a batch.

    Args:
        loss: scalar loss.
        parameters: the weights that get gradients, which are measured and clipped. Other networks in the loss, such as
            the critic in an actor's loss, get no gradients.
        max_grad_norm: L2 norm over all weights to which gradients are clipped; None for no clipping.
        share: see :data:`ShareGradients`; None if only one process trains.
        part: index of this part of the batch, from 0, and the number of parts; the gradients of all parts are averaged.

    Returns:
        detached L2 norm of the gradients so far, before clipping, on the device, not synchronized.
    """
    number, parts = part
    is_last = number == parts - 1
    trained = []
    for parameter in parameters:
        if number == 0:
            # Discard old gradients, also of frozen weights, where they would add up. zero_grad would take as long as
            # the step of a small network.
            parameter.grad = None
        if parameter.requires_grad:
            trained.append(parameter)
    with nullcontext() if share is None or not is_last else share(trained):
        (loss if parts == 1 else loss / parts).backward(inputs=trained)  # type: ignore[no-untyped-call]
    if number == 0 and parts > 1 and loss.is_cuda:
        # copied, because the CUDA graph of a compiled network overwrites its results in the next part of the batch
        for weight in trained:
            weight.grad = None if weight.grad is None else weight.grad.clone()
    gradients = [p.grad for p in trained if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if is_last and max_grad_norm is not None:
        scale = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        # skip the multiplication by 1 only on the CPU; on other devices, reading the scale would make the CPU wait
        if norm.device.type != "cpu" or not bool(scale == 1.0):
            torch._foreach_mul_(gradients, scale)
    return norm


class EMA:
    """Moving average of a module's weights; evaluate :attr:`module` instead of the original.

    Update k (counted from 0) uses the decay ``1 - (1 + n / inv_gamma) ** -power`` with
    ``n = k - 1 - update_after_step``, at most ``max_decay``; while ``n <= 0`` the weights are copied.
    Parameters that are not trained and buffers (BatchNorm's statistics) are copied at each update.

    Args:
        source: the module in training; the average starts as a copy of it.
        power: speed of the warm-up: 2/3 for a million updates and more, 3/4 for fewer.
        inv_gamma: time scale of the warm-up in updates.
        max_decay: largest decay, at which the warm-up ends.
        decay: a constant decay instead of the warm-up.
        update_after_step: number of first updates that only copy the weights.
    """

    def __init__(
        self,
        source: nn.Module,
        *,
        power: float = 0.75,
        inv_gamma: float = 1.0,
        max_decay: float = 0.9999,
        decay: float | None = None,
        update_after_step: int = 0,
    ) -> None:
        self.power = power
        self.inv_gamma = inv_gamma
        self.max_decay = max_decay
        self.constant_decay = decay
        self.update_after_step = update_after_step
        self.num_updates = 0
        self.module = copy.deepcopy(source).requires_grad_(False).eval()
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):
                # the copied weights are not in one block of memory; cuDNN would move them into one in each call
                part.flatten_parameters()

    def decay_at(self, update: int) -> float:
        """Return the decay in update number ``update``, counted from 0: the weight of the old average."""
        warm = update - 1 - self.update_after_step
        if self.constant_decay is not None:
            return self.constant_decay if warm >= -1 else 0.0
        if warm <= 0:
            return 0.0
        risen = 1.0 - math.pow(1.0 + warm / self.inv_gamma, -self.power)
        return min(self.max_decay, risen)

    @torch.no_grad()
    def update(self, source: nn.Module) -> None:
        """Move the average towards the weights of ``source``, in place."""
        old: list[Tensor] = []
        new: list[Tensor] = []
        for average, value in zip(self.module.parameters(), source.parameters(), strict=True):
            if value.requires_grad:
                old.append(average)
                new.append(value)
            else:
                average.copy_(value)
        if old:
            torch._foreach_lerp_(old, new, 1.0 - self.decay_at(self.num_updates))
        for shadow, buffer in zip(self.module.buffers(), source.buffers(), strict=True):
            shadow.copy_(buffer)
        self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs: tensors and one number."""
        return {"num_updates": self.num_updates, "module": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`, but keep the settings of the constructor."""
        missing = {"num_updates", "module"} - set(state)
        if missing:
            raise CheckpointError(
                f"the moving average in the checkpoint lacks {sorted(missing)}; found {sorted(state)}"
            )
        self.num_updates = int(state["num_updates"])
        self.module.load_state_dict(state["module"])


def averaging(config: Any) -> Any:
    """Return the section ``ema`` of an algorithm's section; None if the moving average is not enabled."""
    section = config.get("ema", None)
    return section if section is not None and section.enabled else None
