"""A frozen policy as a slot of an algorithm: it stays as it is while the algorithm learns.

It is among the algorithm's networks, as its weights and a description of what they mean. So a checkpoint of the
algorithm is whole without the file that the policy came from, and processes that act get the policy with the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Self

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.policy_state import PolicyState
from imitate.config import Section, load_config
from imitate.errors import CheckpointError
from imitate.models.preprocess import Preprocess


class FrozenPolicyConfig(Section):
    """The frozen policy."""

    checkpoint: str | None = Field(
        None,
        description="a checkpoint of any algorithm, ours or robomimic's, whose observations are among those of "
        "this configuration; null: experiment.ckpt_path brings it",
    )


class FrozenPolicy(nn.Module):
    """Any policy, by its checkpoint. An empty one gives actions of 0.

    Args:
        ac_dim: action dimensions of the algorithm around it.
    """

    description: Tensor

    def __init__(self, ac_dim: int) -> None:
        super().__init__()
        self._ac_dim = ac_dim
        self._algo: Algo | None = None
        # Text as bytes, so that it travels as weights do.
        self.register_buffer("description", torch.zeros(0, dtype=torch.uint8))

    def adopt(self, ckpt: Mapping[str, Any], around: Preprocess) -> None:
        """Take over the policy of a checkpoint.

        Args:
            ckpt: the loaded checkpoint.
            around: how the algorithm around it prepares observations and actions.

        Raises:
            CheckpointError: it cannot act on these observations, or takes other actions.
        """
        described = {
            "algo_name": ckpt["algo_name"],
            "config": ckpt["config"],
            "shapes": ckpt["shape_metadata"]["all_shapes"],
            "ac_dim": ckpt["shape_metadata"]["ac_dim"],
            "preprocess": _lists(ckpt["preprocess"]),
        }
        text = json.dumps(described).encode()
        description = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
        algo = self._built(description, count_numbers(ckpt["model"]))
        _check(algo, ckpt, around)
        try:
            algo.deserialize(ckpt["model"], load_optimizers=False)
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"the weights of the frozen policy do not fit its configuration: {str(error).splitlines()[-1].strip()}"
            ) from error
        for learner in algo.learners:
            if learner.ema is not None:
                learner.nets.load_state_dict(learner.ema.module.state_dict())
        self._hold(algo, description)

    def initial_state(self, batch_size: int) -> PolicyState:
        """State of B policies that have seen nothing yet."""
        return {"policy": {}} if self._algo is None else self._algo.initial_state(batch_size)

    @torch.no_grad()
    def act(
        self,
        obs: Mapping[str, Tensor],
        state: PolicyState,
        around: Preprocess,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, PolicyState]:
        """Actions (B, A) and the next state.

        Args:
            obs: (B, ...) as ``around`` prepares them.
            state: its own.
            around: of the algorithm around it; actions are in its units, within -1 and 1.
            generator: source of randomness; the default generator otherwise.
        """
        algo = self._algo
        if algo is None:
            first = next(iter(obs.values()))
            return first.new_zeros(len(first), self._ac_dim), state
        own = algo.preprocess
        seen = {
            key: own.normalize_obs(key, around.unnormalize_obs(key, obs[key]))
            for key in algo.obs_shapes
        }
        step = algo.act(seen, state, generator=generator)
        action = around.normalize_actions(own.unnormalize_actions(step.action, seen), obs)
        return action.clamp(-1.0, 1.0), step.state

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """The state without actions that are planned and not yet taken."""
        return state if self._algo is None else self._algo.cut_plan(state)

    def cut_within(self, state: PolicyState) -> PolicyState:
        """The state of the algorithm around it with its own plan, under ``policy`` and ``base``, cut."""
        policy = state["policy"]
        return {**state, "policy": {**policy, "base": self.cut_plan(policy["base"])}}

    def act_afresh(self, obs: Mapping[str, Tensor], around: Preprocess, frames: int) -> Tensor:
        """Actions (B, A) from the frames of the observations alone, as at the start of an episode.

        Args:
            obs: (B, ...), or (B, F, ...) with F = ``frames`` > 1, oldest first.
            around: as for :meth:`act`.
            frames: F.
        """
        steps = [
            {key: value[:, step] if frames > 1 else value for key, value in obs.items()}
            for step in range(frames)
        ]
        state = self.initial_state(len(next(iter(obs.values()))))
        for step in steps:
            action, state = self.act(step, state, around)
        return action

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    # ---- what it consists of -------------------------------------------------------------------------------------

    def _built(self, description: Tensor, stored: int) -> Algo:
        """The described algorithm, with fresh weights of no more numbers than are stored for it."""
        described = json.loads(bytes(description.cpu().numpy()))
        shapes = {key: tuple(shape) for key, shape in described["shapes"].items()}
        device = self.description.device
        # Weights are drawn only to be replaced; the caller's random numbers stay as they were.
        with torch.random.fork_rng(devices=[]), AllocationLimit(stored):
            algo = algo_factory(
                described["algo_name"],
                load_config(json.loads(described["config"])),
                shapes,
                described["ac_dim"],
                device,
                load_pretrained=False,
            )
        algo.preprocess = Preprocess.from_dict(described["preprocess"]).to(device)
        return algo

    def _hold(self, algo: Algo, description: Tensor) -> None:
        for learner in algo.learners:
            learner.ema = None
        algo.set_eval()
        self.description = description.to(self.description.device)
        self._algo = algo
        self.nets = algo.nets.requires_grad_(False)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Build the policy that the saved description names; torch then loads its weights."""
        saved = state_dict.get(f"{prefix}description")
        if (
            saved is not None
            and len(saved)
            and not torch.equal(saved.cpu(), self.description.cpu())
        ):
            stored = {name: x for name, x in state_dict.items() if name.startswith(prefix)}
            self._hold(self._built(saved, count_numbers(stored)), saved)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def frozen_policy_of(algo: Algo) -> FrozenPolicy | None:
    """Return the frozen policy that :attr:`Algo.frozen` names among the networks, or None."""
    return None if algo.frozen is None else cast(FrozenPolicy, algo.nets[algo.frozen])


def _check(algo: Algo, ckpt: Mapping[str, Any], around: Preprocess) -> None:
    """Refuse a policy that cannot act inside this algorithm."""
    name, shapes = ckpt["algo_name"], algo.obs_shapes
    if algo.goal_shapes or not algo.algo_config.acts:
        raise CheckpointError(
            f"algo.base.checkpoint: a policy of {name} that wants goals, or does not act, cannot be built upon"
        )
    missing = [key for key in shapes if key not in around.obs_shapes]
    if missing:
        raise CheckpointError(
            f"algo.base.checkpoint: the policy of {name} sees {', '.join(missing)}: list that in "
            "observation.modalities too"
        )
    other = [key for key in shapes if tuple(shapes[key]) != tuple(around.obs_shapes[key])]
    if other:
        raise CheckpointError(
            f"algo.base.checkpoint: observation '{other[0]}' of {name} has shape {shapes[other[0]]}, here it has "
            f"{around.obs_shapes[other[0]]}: take a policy of this environment"
        )
    taken, wanted = (
        sum(key.sent for key in p.actions.keys.values()) for p in (algo.preprocess, around)
    )
    if taken != wanted:
        raise CheckpointError(
            f"algo.base.checkpoint: the policy of {name} gives actions of {taken} numbers, here they have {wanted}: "
            "take a policy of this environment"
        )


def _lists(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _lists(value) for key, value in tree.items()}
    return tree.tolist() if isinstance(tree, Tensor) else tree
