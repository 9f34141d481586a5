"""Frozen policy as a slot of an algorithm; its weights do not change unless the algorithm trains them.

The frozen policy is one of the algorithm's networks and contains its own weights and a description of its networks. So
a checkpoint of the algorithm is complete without the file of the policy, and processes that act receive the policy
together with the other weights.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Self

from imitate.algo.base.acting import OMITTED, keep_only, load_model
from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.chunk_policy import ChunkPolicy, DenoisingStep, denoised
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.policy_state import PolicyState
from imitate.algo.slots.density import distribution_of, last_frames, without_density
from imitate.config import Section, load_config
from imitate.errors import CheckpointError
from imitate.models.heads import ActionDistribution
from imitate.models.preprocess import Preprocess
from imitate.system.plain_files import json_value


class FrozenPolicyConfig(Section):
    """The frozen policy, and where its weights come from."""

    checkpoint: str | None = Field(
        None,
        description="the frozen policy: a checkpoint or run folder of imitate or robomimic, whose observations are "
        "among those of this configuration; 'scripted' for the task's expert; 'module:function' for a function from "
        "an observation to an action; null: taken from experiment.ckpt_path",
    )


class FrozenPolicy(nn.Module):
    """Policy of any algorithm, loaded from a checkpoint. Before loading, it returns zeros, or given noise, as actions.

    Args:
        ac_dim: action dimensions of the outer algorithm.
        checkpoint: checkpoint of the policy; None if the policy is part of ``experiment.ckpt_path``.
        key: section of the configuration that names the policy, for messages.
        needs_density: refuse a policy without :meth:`distribution`.
        steered: number of actions of each chunk that are used, if the outer algorithm chooses the noise of the chunk
            (:meth:`from_noise`); 0 if the policy draws its own noise.
        trained: true if the outer algorithm trains the weights, by gradients through :meth:`denoising_steps`.
    """

    description: Tensor

    def __init__(
        self,
        ac_dim: int,
        checkpoint: str | None = None,
        *,
        key: str = "algo.base",
        needs_density: bool = False,
        steered: int = 0,
        trained: bool = False,
    ) -> None:
        super().__init__()
        self._trained = trained
        self.checkpoint, self.key = checkpoint, key
        self._ac_dim, self._needs_density, self._steered = ac_dim, needs_density, steered
        self._algo: Algo | None = None
        # the description is JSON text, stored as bytes so that it is saved and sent like weights
        self.register_buffer("description", torch.zeros(0, dtype=torch.uint8))

    def adopt(self, ckpt: Mapping[str, Any], around: Preprocess) -> None:
        """Load the policy of a checkpoint.

        Args:
            ckpt: the loaded checkpoint.
            around: the outer algorithm's preprocessing of observations and actions.

        Raises:
            CheckpointError: the policy cannot act on these observations, its actions have another size, or the outer
                algorithm needs a density or noise that the policy does not have.
        """
        described = {
            "algo_name": ckpt["algo_name"],
            "config": ckpt["config"],
            "shapes": ckpt["shape_metadata"]["all_shapes"],
            "ac_dim": ckpt["shape_metadata"]["ac_dim"],
            "preprocess": _lists(ckpt["preprocess"]),
            OMITTED: ckpt["model"].get(OMITTED, 0),
        }
        text = json.dumps(described).encode()
        description = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
        algo = self._built(description, count_numbers(ckpt["model"]))
        problem = _problem(algo, ckpt, around)
        if problem is None and self._needs_density:
            problem = without_density(algo, around)
        if problem is None and self._steered:
            problem = _not_steerable(algo, self._steered)
        if problem is not None:
            raise CheckpointError(f"{self.key}.checkpoint: {problem}")
        try:
            load_model(algo, ckpt["model"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"the weights of the frozen policy do not fit its configuration: {str(error).splitlines()[-1].strip()}"
            ) from error
        for learner in algo.learners:
            if learner.ema is not None:
                learner.nets.load_state_dict(learner.ema.module.state_dict())
        self._hold(algo, description)

    def initial_state(self, batch_size: int) -> PolicyState:
        """Return the states of B policies at the start of an episode."""
        return {"policy": {}} if self._algo is None else self._algo.initial_state(batch_size)

    @torch.no_grad()
    def act(
        self,
        obs: Mapping[str, Tensor],
        state: PolicyState,
        around: Preprocess,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, PolicyState]:
        """Return actions (B, A) and the next state.

        Args:
            obs: (B, ...) observations prepared by ``around``.
            state: state of the frozen policy.
            around: preprocessing of the outer algorithm, which defines the units of the actions, within -1 and 1.
            generator: source of randomness; None: the default generator.
        """
        algo = self._algo
        if algo is None:
            first = next(iter(obs.values()))
            return first.new_zeros(len(first), self._ac_dim), state
        seen = _seen(algo, obs, around)
        step = algo.act(seen, state, generator=generator)
        action = around.normalize_actions(
            algo.preprocess.unnormalize_actions(step.action, seen), obs
        )
        return action.clamp(-1.0, 1.0), step.state

    @torch.no_grad()
    def distribution(
        self, obs: Mapping[str, Tensor], around: Preprocess
    ) -> ActionDistribution | None:
        """Return the policy's distribution over actions in the outer algorithm's units; None without a policy.

        A policy with a memory sees only the given frames, as at the start of an episode.

        Args:
            obs: (B, ...), or (B, F, ...) with stacked frames, oldest first, prepared by ``around``.
            around: preprocessing of the outer algorithm.
        """
        algo = self._algo
        if algo is None:
            return None
        return distribution_of(algo, _seen(algo, obs, around), around)

    @property
    def prediction_horizon(self) -> int:
        """Number of actions T that a policy of chunks predicts."""
        algo = self._algo
        return self._steered if algo is None else cast(ChunkPolicy, algo).prediction_horizon

    @property
    def num_denoising_steps(self) -> int:
        """Number of steps that :meth:`denoising_steps` returns."""
        return 1 if self._algo is None else cast(ChunkPolicy, self._algo).num_denoising_steps

    def denoising_steps(
        self, obs: Mapping[str, Tensor], around: Preprocess, frames: int
    ) -> list[DenoisingStep]:
        """Return the steps from noise to a prediction, functions of (B, T, A); without a policy, one identity function.

        Args:
            obs: (B, ...), or (B, F, ...) with F = ``frames`` > 1, oldest first.
            around: preprocessing of the outer algorithm.
            frames: F. If the policy sees more frames, the oldest frame is repeated.
        """
        if self._algo is None:
            return [lambda noisy: noisy]
        algo = cast(ChunkPolicy, self._algo)
        seen = _seen(algo, _stacked(obs, frames), around)
        return algo.denoising_steps(last_frames(seen, algo.frame_stack), None)

    @torch.no_grad()
    def executed(
        self, obs: Mapping[str, Tensor], prediction: Tensor, around: Preprocess, frames: int
    ) -> Tensor:
        """Return the actions (B, ``steered``, A) of a prediction (B, T, A), in units of ``around``, within -1 and 1."""
        if self._algo is None:
            return prediction.clamp(-1.0, 1.0)
        algo, stacked = cast(ChunkPolicy, self._algo), _stacked(obs, frames)
        chunk = algo.from_prediction(prediction)[:, : self._steered]
        raw = algo.preprocess.unnormalize_actions(
            chunk, last_frames(_seen(algo, stacked, around), 1)
        )
        return around.normalize_actions(raw, last_frames(stacked, 1)).clamp(-1.0, 1.0)

    @torch.no_grad()
    def from_noise(
        self, obs: Mapping[str, Tensor], noise: Tensor, around: Preprocess, frames: int
    ) -> Tensor:
        """Return the chunks (B, ``steered``, A) that the policy predicts from noise (B, S, A).

        Each of the S noise vectors is repeated over an equal part of the prediction. Other arguments are as for
        :meth:`denoising_steps`.
        """
        along = _along(noise, self.prediction_horizon)
        prediction = denoised(self.denoising_steps(obs, around, frames), along)
        return self.executed(obs, prediction, around, frames)

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Return the state without planned actions."""
        return state if self._algo is None else self._algo.cut_plan(state)

    def cut_within(self, state: PolicyState) -> PolicyState:
        """Discard the planned actions in both states: the outer algorithm's and the frozen policy's.

        They are ``state["policy"]`` and ``state["policy"]["base"]``.
        """
        policy = state["policy"]
        return {**state, "policy": {**policy, "base": self.cut_plan(policy["base"])}}

    def act_afresh(self, obs: Mapping[str, Tensor], around: Preprocess, frames: int) -> Tensor:
        """Return actions (B, A) from only the given frames, as at the start of an episode.

        Args:
            obs: (B, ...), or (B, F, ...) with F = ``frames`` > 1, oldest first.
            around: preprocessing of the outer algorithm.
            frames: F, number of stacked frames.
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
        """Ignore ``mode``, because the frozen policy always stays in evaluation mode."""
        return super().train(False)

    # ---- construction -----------------------------------------------------------------------------------------------

    def _built(self, description: Tensor, stored: int) -> Algo:
        """Build the described algorithm with random weights; refuse networks much larger than ``stored`` numbers."""
        described = json_value(bytes(description.cpu().numpy()))
        shapes = {key: tuple(shape) for key, shape in described["shapes"].items()}
        device = self.description.device
        limit = AllocationLimit(stored, int(described.get(OMITTED, 0)))
        # The random initial weights are replaced afterwards, so drawing them must not change the caller's random
        # numbers.
        with torch.random.fork_rng(devices=[]), limit:
            algo = algo_factory(
                described["algo_name"],
                load_config(json_value(described["config"])),
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
        self.nets = algo.nets.requires_grad_(self._trained)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Build the policy of the saved description; torch then loads its weights."""
        saved = state_dict.get(f"{prefix}description")
        if (
            saved is not None
            and len(saved)
            and not torch.equal(saved.cpu(), self.description.cpu())
        ):
            stored = {name: x for name, x in state_dict.items() if name.startswith(prefix)}
            algo, nets = self._built(saved, count_numbers(stored)), f"{prefix}nets."
            keep_only(algo, [name.removeprefix(nets) for name in stored])
            self._hold(algo, saved)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def frozen_policy_of(algo: Algo) -> FrozenPolicy | None:
    """Return the frozen policy among an algorithm's networks, or None if it has none."""
    return next((net for net in algo.nets.modules() if isinstance(net, FrozenPolicy)), None)


def _seen(algo: Algo, obs: Mapping[str, Tensor], around: Preprocess) -> dict[str, Tensor]:
    """Return the observations as the frozen policy prepares them."""
    return {
        key: algo.preprocess.normalize_obs(key, around.unnormalize_obs(key, obs[key]))
        for key in algo.obs_shapes
    }


def _problem(algo: Algo, ckpt: Mapping[str, Any], around: Preprocess) -> str | None:
    """Return the reason why a policy cannot act inside the outer algorithm, or None if it can."""
    name, shapes = ckpt["algo_name"], algo.obs_shapes
    if algo.goal_shapes or not algo.algo_config.acts:
        return f"a policy of {name} cannot be used, because it needs goals or does not act"
    missing = [key for key in shapes if key not in around.obs_shapes]
    if missing:
        return f"the policy of {name} sees {', '.join(missing)}: list these in observation.modalities too"
    other = [key for key in shapes if tuple(shapes[key]) != tuple(around.obs_shapes[key])]
    if other:
        return (
            f"observation '{other[0]}' of {name} has shape {shapes[other[0]]}, here it has "
            f"{around.obs_shapes[other[0]]}: take a policy of this environment"
        )
    taken, wanted = (
        sum(key.sent for key in p.actions.keys.values()) for p in (algo.preprocess, around)
    )
    if taken != wanted:
        return (
            f"the policy of {name} gives actions of {taken} numbers, here they have {wanted}: take a policy of this "
            "environment"
        )
    return None


def _stacked(obs: Mapping[str, Tensor], frames: int) -> dict[str, Tensor]:
    """Return observations (B, F, ...); if F = ``frames`` is 1, add the axis of frames."""
    return {key: value if frames > 1 else value.unsqueeze(1) for key, value in obs.items()}


def _along(noise: Tensor, steps: int) -> Tensor:
    """Repeat S noise vectors (B, S, A), each for an equal part of (B, steps, A)."""
    return noise[:, torch.arange(steps, device=noise.device) * noise.shape[1] // steps]


def _not_steerable(algo: Algo, steered: int) -> str | None:
    """Return the reason why a policy cannot predict chunks of ``steered`` actions from given noise, or None."""
    name = algo.global_config.algo_name
    if not isinstance(algo, ChunkPolicy) or not algo.num_denoising_steps:
        return f"a policy of {name} makes no actions from noise: take a flow_policy or diffusion_policy"
    size = algo.execution.size
    if steered > size:
        return (
            f"the policy of {name} predicts {size} actions, but algo.n_step is {steered}: lower it"
        )
    return None


def _lists(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _lists(value) for key, value in tree.items()}
    return tree.tolist() if isinstance(tree, Tensor) else tree
