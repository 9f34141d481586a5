"""Conversion of steps that another toolkit's loop has collected to batches of an algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo, Batch, PolicyStep
from imitate.algo.base.policy_state import PolicyState
from imitate.algo.base.rows import select_rows
from imitate.data.batches.windows import TransitionPicker, Windows, transition_table
from imitate.errors import UserError

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Experience:
    """T successive steps of N environments, raw values (T, N, ...).

    Attributes:
        obs: observations before the steps, by key.
        next_obs: observations after the steps; at the end of an episode, its last observation.
        actions: (T, N, A) in the units of the environment.
        rewards: (T, N).
        terminals: (T, N) bool, true if the step ended the task.
        timeouts: (T, N) bool, true if the time limit ended the episode.
        extras: further outputs of the policy, such as ``log_prob``.
        mask: (T, N) bool, false for padding without a step; None if there is no padding.
    """

    obs: Arrays
    next_obs: Arrays
    actions: Array
    rewards: Array
    terminals: Array
    timeouts: Array
    extras: Arrays = field(default_factory=dict)
    mask: Array | None = None

    def samples(self, algo: Algo) -> Batch:
        """Return the batch from which an algorithm learns: a prepared rollout, or raw windows of a replay buffer.

        Raises:
            UserError: the algorithm needs data that single steps and their next observations lack.
        """
        if getattr(algo, "memory", None) is not None:
            raise UserError(
                f"{algo.global_config.algo_name} learns from sequences with a recurrent state (algo.rnn), "
                "which single samples lack: train it with `imitate train`; acting with it is supported "
                "here"
            )
        section, source = algo.config, getattr(algo, "reward_source", None)
        slots = {
            "algo.rewards": section.get("rewards"),
            "algo.dynamics": "dynamics" in algo.nets,
            "algo.reward_source": source is not None,
            "algo.auxiliary of several steps": section.following(algo.global_config) is not None,
        }
        for name in filter(slots.get, slots):
            raise UserError(
                f"{name}: its training samples exist only in `imitate train`: leave it out here; acting "
                "is supported with it"
            )
        return self._rollout(algo) if algo.experience == "rollout" else self._windows(algo)

    def _rollout(self, algo: Any) -> Batch:
        """Return the steps as a prepared rollout, whose last steps may be in the middle of an episode."""
        mask = self._mask
        timeouts = self._timeouts
        cut = timeouts.copy()
        cut[-1] = True
        rows = np.flatnonzero(cut)
        rollout = {
            "obs": dict(self.obs),
            "end_obs": {key: _flat(value)[rows] for key, value in self.next_obs.items()},
            "end_rows": rows,
            "actions": self.actions,
            "rewards": self.rewards.astype(np.float32),
            "terminals": self.terminals,
            "timeouts": timeouts,
            "mask": mask,
            **self.extras,
        }
        rollout["rewards"] = algo.rollout_rewards(rollout)
        prepared: Batch = algo.prepare_rollout(rollout)
        return prepared

    def _windows(self, algo: Algo) -> Batch:
        """Return the raw windows that begin at each step, environment by environment."""
        config = algo.global_config
        needs = algo.config.data_needs(config)
        if needs.returns is not None or needs.subgoals is not None:
            raise UserError(
                f"{config.algo_name} learns from whole episodes of a file: train it with `imitate train`; "
                "acting with it is supported here"
            )
        obs, following = (_by_env(group) for group in (self.obs, self.next_obs))
        steps = _by_env({"actions": self.actions, "rewards": self.rewards, "dones": self.terminals})
        mask = self._mask.T
        ends = (self.terminals | self._timeouts).T.copy()
        ends[:, -1] = True
        after = np.flatnonzero(ends) + 1
        start = np.concatenate([[0], after[:-1]])
        frames, now = config.train.frame_stack, np.arange(ends.size)
        window = Windows(start, after, frames, config.train.seq_length).rows(now)
        batch: dict[str, Any] = {
            "obs": {key: value[window.rows] for key, value in obs.items()},
            **{key: value[window.rows] for key, value in steps.items()},
            "pad_mask": window.real,
        }
        wanted = needs.transitions
        if wanted is not None:
            table = transition_table(
                steps["rewards"],
                steps["dones"],
                after,
                wanted,
                end_is_known=not wanted.next_actions,
            )
            picker = TransitionPicker(table, start, frames)
            before, last = picker.next_frames(now, window.demo)
            batch["next_obs"] = {
                key: np.concatenate([obs[key][before], value[last]], axis=1)
                for key, value in following.items()
            }
            batch |= picker.numbers_at(now)
            if wanted.next_actions:
                later = np.minimum(table.last + 1, ends.size - 1)
                batch["next_actions"] = steps["actions"][later]
                batch["weight"] = window.real * table.usable[:, None].astype(np.float32)
        steps_only = torch.from_numpy(np.flatnonzero(mask))
        return select_rows(tensors(batch), steps_only)

    @property
    def _mask(self) -> Array:
        return np.ones_like(self.terminals) if self.mask is None else self.mask

    @property
    def _timeouts(self) -> Array:
        """Time limits (T, N); padding, and a step before padding that is not terminal, count as time limits too."""
        missing = ~self._mask
        missing[:-1] |= missing[1:]
        found: Array = self.timeouts | missing & ~self.terminals
        return found


def tensors(tree: Mapping[str, Any], device: torch.device | str = "cpu") -> dict[str, Any]:
    """Convert the arrays of a nested dict to tensors."""
    return {
        key: tensors(value, device)
        if isinstance(value, Mapping)
        else torch.as_tensor(value, device=device)
        for key, value in tree.items()
    }


def decided(
    algo: Algo, obs: Arrays, state: PolicyState, *, explore: bool
) -> tuple[Tensor, PolicyStep]:
    """Act in evaluation mode for raw observations (B, ...); return the result, and the actions (B, A) in raw units."""
    training = algo.nets.training
    algo.set_eval()
    prepared = algo.preprocess.prepare_obs(obs, tuple(algo.obs_shapes))
    with torch.no_grad():
        step = algo.act(prepared, state, explore=explore)
        action = algo.preprocess.unnormalize_actions(step.action, prepared)
    if training:
        algo.set_train()
    return action, step


def _flat(value: Array) -> Array:
    """Merge the first two axes: (T, N, ...) to (T N, ...)."""
    return value.reshape(-1, *value.shape[2:])


def _by_env(group: Arrays) -> dict[str, Array]:
    """Return arrays (T, N, ...) as (N T, ...), one environment after the other; vectors become float32."""
    flat = {key: _flat(np.swapaxes(value, 0, 1)) for key, value in group.items()}
    return {
        key: value if value.dtype == np.uint8 else value.astype(np.float32)
        for key, value in flat.items()
    }
