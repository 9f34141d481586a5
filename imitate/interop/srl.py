"""Adapter that gives an algorithm of this package the interfaces of a policy and a trainer of SRL.

Source: ``api/policy.py``, ``api/trainer.py`` and the developer's quick start of https://github.com/openpsi-project/srl
(636c5dab). Methods and fields have SRL's names; each method calls the algorithm:

    Policy.rollout(requests)         Algo.act, with exploration in the rows that are not ``is_evaluation``
    Policy.default_policy_state      one row of Algo.initial_state
    Policy.analyze(sample, target)   log-densities, values and entropies of a rollout, or the losses without an update
    Trainer.step(sample)             Algo.process_batch_for_training and train_on_batch: one update

A sample has T + 1 observations (T + 1, B, ...) of B agents, which SRL's actor workers send. Row t has an observation,
the ``action`` after it and the ``reward`` of this action. ``done`` and ``truncated`` are true if the observation is the
last one of an episode. Such a row has no step; the next row begins an episode and has ``on_reset``.

Departures:

* States, results and samples are nested dicts (:class:`NamedArray` adds attributes and slices); SRL's named arrays are
  accepted too. A state has no axis of agents, like a row of a batch.
* Actions are arrays in the units of the algorithm's preprocessing, and discrete actions are one-hot; SRL's actions
  with a field ``x`` are accepted too.
* ``step`` makes one update from a sample, without PPO's epochs and without prefetching.
* Advantages are computed here, from the policy's values before the update, not from values in the sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch
from imitate.algo.base.policy_state import PolicyState, joined_states
from imitate.algo.base.rows import arrays_of, select_rows
from imitate.errors import UserError
from imitate.interop.experience import Experience, decided, tensors

ROLLOUT_TARGETS = ("ppo", "mappo")
"""Values of ``target`` with which SRL's on-policy trainers call ``analyze``."""


class NamedArray(dict[str, Any]):
    """Arrays by name, also available as attributes; an index or slice selects from each array."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError as error:
            raise AttributeError(name) from error

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return NamedArray({name: None if x is None else x[key] for name, x in self.items()})

    def length(self, dim: int) -> int:
        """Return the length of an axis of the first array."""
        first = next(x for x in self.values() if x is not None)
        return first.length(dim) if isinstance(first, NamedArray) else int(first.shape[dim])


@dataclass
class TrainerStepResult:
    """Result of :meth:`Trainer.step`.

    Attributes:
        stats: numbers to log.
        step: number of updates so far.
        agree_pushing: true if the weights may be sent to the policy workers.
        priorities: TD error of each step of the sample; None if the algorithm has no critics.
    """

    stats: dict[str, float]
    step: int
    agree_pushing: bool = True
    priorities: np.ndarray[Any, Any] | None = field(default=None)


class Policy:
    """An algorithm as a policy of SRL."""

    def __init__(self, algo: Algo) -> None:
        self.algo = algo
        self.version = -1
        """Version of the policy, the number of updates; -1 before the first one."""

    @property
    def device(self) -> str:
        """Device of the networks."""
        return str(self.algo.device)

    @property
    def net(self) -> nn.Module:
        """All networks."""
        return self.algo.nets

    @property
    def default_policy_state(self) -> NamedArray | None:
        """State of an agent at the start of an episode; None for a policy without a memory."""
        state = arrays_of(self.algo.initial_state(1))
        return _named(state)[0] if _has_arrays(state) else None

    def rollout(self, requests: Any) -> NamedArray:
        """Act for a batch of agents, with exploration in the rows whose ``is_evaluation`` is 0.

        Args:
            requests: ``obs`` by key (B, ...), and optionally ``policy_state``, ``is_evaluation`` and ``on_reset``.

        Returns:
            ``action`` (B, A), the next ``policy_state``, ``analyzed_result`` (further outputs; NaN in rows with
            ``is_evaluation``), ``policy_version_steps`` (B, 1).
        """
        algo, given = self.algo, _read(requests)
        count = len(next(iter(given["obs"].values())))
        brought = tensors(given.get("policy_state", {}), algo.device)
        state = cast(PolicyState, algo.initial_state(count) | brought)
        resets = torch.from_numpy(_flags(given.get("on_reset"), count)).to(algo.device)
        state = algo.reset_state(state, resets)
        evaluates = _flags(given.get("is_evaluation"), count)
        groups = [
            (rows, explore)
            for explore in (True, False)
            if len(rows := np.flatnonzero(evaluates != explore))
        ]
        parts: list[dict[str, Any]] = []
        for rows, explore in groups:
            chosen = torch.from_numpy(rows)
            obs = {key: value[rows] for key, value in given["obs"].items()}
            action, step = decided(
                algo, obs, cast(PolicyState, select_rows(state, chosen)), explore=explore
            )
            parts.append(
                {"action": action, "policy_state": step.state, "analyzed_result": step.extras}
            )
        known = parts[0]["analyzed_result"]
        for part in parts[1:]:
            size = len(part["action"])
            part["analyzed_result"] = {
                k: torch.full((size, *x.shape[1:]), torch.nan).to(x) for k, x in known.items()
            }
        order = np.argsort(np.concatenate([rows for rows, _ in groups]))
        whole = select_rows(joined_states(parts), torch.from_numpy(order))
        version = np.full((count, 1), self.version, dtype=np.int64)
        return _named({**arrays_of(whole), "policy_version_steps": version})

    def analyze(self, sample: Any, target: str) -> NamedArray:
        """Compute the quantities that a trainer needs from a sample, without an update.

        Args:
            sample: a sample as described in the module's docstring.
            target: for an on-policy algorithm ``ppo`` or ``mappo``, to get ``old_action_log_probs``,
                ``new_action_log_probs``, ``state_values`` and ``entropy`` of the steps, with gradient; else the name of
                the algorithm, to get its losses.
        """
        algo, name = self.algo, self.algo.global_config.algo_name
        batch = batch_of(algo, sample)
        if algo.experience == "rollout" and target in (*ROLLOUT_TARGETS, name):
            policy, values = algo.nets["policy"](batch["obs"])
            policy = algo.action_mask.policy(policy, batch["obs"])
            return NamedArray(
                old_action_log_probs=batch["log_prob"],
                new_action_log_probs=policy.log_prob(batch["actions"]),
                state_values=values,
                entropy=policy.entropy(),
            )
        if target != name:
            raise UserError(
                f"target: {name} has no analysis for '{target}'; give '{name}' to get its losses"
            )
        training = algo.nets.training
        algo.set_eval()
        info = algo.train_on_batch(batch, 1, validate=True)
        if training:
            algo.set_train()
        return NamedArray(info)

    def parameters(self) -> Any:
        """Return the parameters of all networks."""
        return self.algo.nets.parameters()

    def train_mode(self) -> None:
        """Switch to training mode."""
        self.algo.set_train()

    def eval_mode(self) -> None:
        """Switch to evaluation mode."""
        self.algo.set_eval()

    def inc_version(self) -> None:
        """Increase the version after an update."""
        self.version += 1

    def get_checkpoint(self) -> dict[str, Any]:
        """Return networks, optimizers and the version."""
        return {"steps": self.version, **self.algo.serialize()}

    def load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the result of :meth:`get_checkpoint`; a checkpoint without ``steps`` has version 0."""
        self.version = int(checkpoint.get("steps", 0))
        self.algo.deserialize(checkpoint)


class Trainer:
    """Trainer of SRL that updates the algorithm of a policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        if policy.algo.gives_errors:
            policy.algo.keeps_errors = True  # type: ignore[attr-defined]

    def step(self, sample: Any) -> TrainerStepResult:
        """Make one update from a sample as described in the module's docstring."""
        algo, policy = self.policy.algo, self.policy
        every = algo.global_config.experiment.epoch_every_n_steps or 1
        batch = batch_of(algo, sample)
        algo.set_train()
        stats = algo.log_info(algo.train_on_batch(batch, 1 + (policy.version + 1) // every))
        policy.inc_version()
        if (policy.version + 1) % every == 0:
            algo.on_epoch_end((policy.version + 1) // every)
        errors: Tensor | None = getattr(algo, "sample_errors", None)
        priorities = None if errors is None else errors.cpu().numpy()
        return TrainerStepResult(stats, policy.version, priorities=priorities)

    def get_checkpoint(self) -> dict[str, Any]:
        """Return networks, optimizers and the version."""
        return self.policy.get_checkpoint()

    def load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the result of :meth:`get_checkpoint`."""
        self.policy.load_checkpoint(checkpoint)


def batch_of(algo: Algo, sample: Any) -> Batch:
    """Return the steps of a sample as a batch for the algorithm."""
    given = _read(sample)
    action = given["action"]["x"] if isinstance(given["action"], Mapping) else given["action"]
    shape = len(action) - 1, action.shape[1]
    if shape[0] < 1:
        raise UserError(
            "the sample has one row, but a step needs the next row, too: collect samples with bootstrap_steps 1"
        )

    def flags(name: str) -> Any:
        """Return a flag (T, B) from the row after each step."""
        return (
            given[name][1:].reshape(shape) > 0 if name in given else np.zeros(shape, dtype=np.bool_)
        )

    done = flags("done")
    steps = Experience(
        {key: value[:-1] for key, value in given["obs"].items()},
        {key: value[1:] for key, value in given["obs"].items()},
        action[:-1],
        given["reward"][:-1].reshape(shape),
        done,
        flags("truncated") & ~done,
        {key: value[:-1] for key, value in given.get("analyzed_result", {}).items()},
        ~flags("on_reset"),
    )
    batch = steps.samples(algo)
    return batch if algo.experience == "rollout" else algo.process_batch_for_training(batch)


def _read(tree: Any) -> dict[str, Any]:
    """Convert SRL's named arrays, or a dict, to a nested dict without fields that are None."""
    return {
        key: _read(value) if hasattr(value, "items") else np.asarray(value)
        for key, value in tree.items()
        if value is not None
    }


def _flags(value: Any, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    flags: np.ndarray[Any, np.dtype[np.bool_]] = (
        np.zeros(count, dtype=np.bool_) if value is None else value.reshape(count) > 0
    )
    return flags


def _named(tree: Mapping[str, Any]) -> NamedArray:
    return NamedArray(
        {key: _named(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    )


def _has_arrays(tree: Mapping[str, Any]) -> bool:
    return any(_has_arrays(x) if isinstance(x, Mapping) else True for x in tree.values())
