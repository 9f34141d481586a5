"""Base class of policies that predict action chunks: windows, execution, error on held-out demonstrations."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from imitate.algo.base.algo import Algo, Batch, ConfigT, Info, PolicyStep
from imitate.algo.base.execution import ChunkExecution, Inputs
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.relative import refuse_guided_deltas
from imitate.errors import UserError
from imitate.functional.losses import masked_mean
from imitate.functional.realtime import Given, Prefix, given_places

DenoisingStep = Callable[[Tensor], Tensor]
"""Function of noisy chunks (B, T, A) that returns less noisy chunks."""


def denoised(steps: Sequence[DenoisingStep], noise: Tensor) -> Tensor:
    """Apply all denoising steps, in order, to noise (B, T, A)."""
    return reduce(lambda noisy, step: step(noisy), steps, noise)


class ChunkPolicy(Algo[ConfigT]):
    """A policy that sees the last ``train.frame_stack`` observations and predicts K actions.

    Subclasses implement the prediction in :meth:`_predict`. With ``uncertainty_samples`` each prediction consists of
    several chunks from different noise, whose spread is the uncertainty until the next prediction.
    """

    chunk_key: ClassVar[str] = "chunk"
    """Key of the section that defines the number of predicted actions and their execution."""
    learns_deltas: ClassVar[bool] = True
    """True if the network may learn differences between the actions of a chunk."""
    aligned_with_oldest_frame: bool = False
    """True if predictions begin at the oldest observation (as in Diffusion Policy) instead of the newest."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gives_uncertainty = self._samples > 0

    @property
    def _samples(self) -> int:
        """Number of chunks whose spread is the uncertainty; 0 if uncertainty is not measured."""
        return int(self.config.get("uncertainty_samples", 0))

    @property
    def prediction_horizon(self) -> int:
        """Number of actions that the network predicts."""
        return int(self.config[self.chunk_key].prediction_horizon)

    @property
    def execution(self) -> ChunkExecution:
        """Execution of the predicted actions, from the newest observation on."""
        return cast(ChunkExecution, self.config[self.chunk_key].execution)

    @property
    def max_prefix(self) -> int:
        """Largest number of planned actions that a prediction can take as input; 0 if it can take none."""
        return 0

    @property
    def num_denoising_steps(self) -> int:
        """Number of :meth:`denoising_steps`; 0 if a prediction is not a function of observations and noise."""
        return 0

    @abstractmethod
    def _predict(self, obs: Batch, goal: Batch | None, generator: torch.Generator | None) -> Tensor:
        """Predict normalized chunks ``(B, prediction_horizon, A)`` for observations ``(B, [F,] ...)``."""

    def predict_chunk(
        self,
        obs: Batch,
        goal: Batch | None = None,
        generator: torch.Generator | None = None,
        prefix: Prefix | None = None,
        planned: Tensor | None = None,
    ) -> Tensor:
        """Predict normalized chunks (B, K, A) that begin at the newest observation.

        Args:
            obs: prepared observations (B, [F,] ...).
            goal: prepared goals, if the policy has goals.
            generator: source of randomness; None: the default generator.
            prefix: actions (B, n, A), n at most K, and weights (n,) towards which the chunk is guided; see
                :mod:`imitate.functional.realtime`.
            planned: actions (B, d, A), d at most :attr:`max_prefix`, with which the chunk begins; see
                :mod:`imitate.functional.realtime`.

        Raises:
            UserError: there is a prefix, but the policy is neither a flow nor a diffusion policy; or there are more
                than :attr:`max_prefix` planned actions.
        """
        if prefix is None and planned is None:
            return self.from_prediction(self._predict(obs, goal, generator))
        refuse_guided_deltas(self.preprocess)
        chunk = self._predict_guided(
            obs,
            goal,
            generator,
            None if prefix is None else self._whole_prefix(prefix),
            None if planned is None else self._whole_given(planned),
        )
        return chunk[:, self._first_action :]

    def from_prediction(self, targets: Tensor) -> Tensor:
        """Convert predictions (B, T, A) to normalized chunks (B, K, A) that begin at the newest observation."""
        return self.preprocess.from_targets(targets)[:, self._first_action :]

    def denoising_steps(self, obs: Batch, goal: Batch | None) -> list[DenoisingStep]:
        """Return the deterministic denoising steps from noise to a prediction.

        Each step maps noisy chunks (B, prediction_horizon, A) to less noisy chunks.
        """
        raise NotImplementedError

    def _predict_various(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None
    ) -> Tensor:
        """Predict chunks like :meth:`_predict`, for observations that are repeated :attr:`_samples` times.

        A policy whose predictions are deterministic overrides this method.
        """
        return self._predict(obs, goal, generator)

    def _sampled(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return a chunk (B, K, A), and the standard deviation (B,) of several chunks from different noise.

        The standard deviation is the root of the mean variance over the numbers of the executed actions. All chunks are
        predicted in one call.
        """

        def repeated(group: Batch | None) -> Batch | None:
            if group is None:
                return None
            return {
                key: value.repeat(self._samples, *[1] * (value.dim() - 1))
                for key, value in group.items()
            }

        various = self._predict_various(cast(Batch, repeated(obs)), repeated(goal), generator)
        chunks = self.from_prediction(various)
        each = chunks.view(self._samples, -1, *chunks.shape[1:])
        executed = each[:, :, : self.execution.latency + self.execution.execute]
        variance: Tensor = executed.var(0, correction=0).mean((-2, -1))
        return each[0], variance.sqrt()

    def _whole_prefix(self, prefix: Prefix) -> Prefix:
        """Pad a prefix to the length of a prediction; the padding, before and after the prefix, has weight 0."""
        after = self.prediction_horizon - self._first_action - len(prefix.weights)
        return replace(
            prefix,
            actions=pad(prefix.actions, (0, 0, self._first_action, after)),
            weights=pad(prefix.weights, (self._first_action, after)),
        )

    def _whole_given(self, planned: Tensor) -> Given:
        """Put planned actions (B, d, A) at their positions in a prediction, the first at the current step."""
        batch_size, count, _ = planned.shape
        if count > self.max_prefix:
            raise UserError(
                f"{count} planned actions are given, but the policy was trained with at most {self.max_prefix}: train "
                f"it with algo.prefix.max_delay {count} (an option of flow_policy and diffusion_policy)"
            )
        first, steps = self._first_action, self.prediction_horizon
        delay = torch.full((batch_size,), count, device=planned.device)
        return Given(
            pad(planned, (0, 0, first, steps - first - count)), given_places(delay, first, steps)
        )

    def _predict_guided(
        self,
        obs: Batch,
        goal: Batch | None,
        generator: torch.Generator | None,
        prefix: Prefix | None,
        given: Given | None = None,
    ) -> Tensor:
        """Predict ``prediction_horizon`` actions, guided towards a prefix or with given actions."""
        raise UserError(
            f"{self.global_config.algo_name} cannot be guided towards planned actions, as real-time chunking requires; "
            "flow_policy and diffusion_policy can"
        )

    @cached_property
    def _first_action(self) -> int:
        """Position of the current action in a prediction."""
        return self.frame_stack - 1 if self.aligned_with_oldest_frame else 0

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the stacked frames of the current step, and the actions that are predicted from them."""
        start = self.frame_stack - 1 - self._first_action
        steps = slice(start, start + self.prediction_horizon)
        frames = slice(0, self.frame_stack) if self.frame_stack > 1 else 0
        mask, weight = batch.get("pad_mask"), batch.get("weight")
        return {
            "obs": {key: value[:, frames] for key, value in batch["obs"].items()},
            "goal_obs": batch.get("goal_obs"),
            "actions": self.preprocess.to_targets(batch["actions"][:, steps]),
            "pad_mask": None if mask is None else mask[:, steps],
            "weight": None if weight is None else weight[:, steps],
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the predicted actions in normalized units, without actions before the current step."""
        predicted = self._predict(batch["obs"], batch["goal_obs"], None)
        error = (predicted - batch["actions"]).abs().mean(-1)[:, self._first_action :]
        mask = batch["pad_mask"]
        return {
            "Action_Error": masked_mean(
                error, None if mask is None else mask[:, self._first_action :]
            )
        }

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        state = super()._initial_policy_state(batch_size)
        if not self._samples:
            return state
        return {**state, "uncertainty": torch.zeros(batch_size, device=self.device)}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        spread: Tensor | None = state.get("uncertainty")

        def predict(inputs: Inputs) -> Tensor:
            nonlocal spread
            if spread is None:
                return self.predict_chunk(inputs["obs"], inputs["goal"], generator)
            predicted, own = self._sampled(inputs["obs"], inputs["goal"], generator)
            spread = spread.index_copy(0, inputs["row"], own)
            return predicted

        inputs: Inputs = {"obs": obs, "goal": goal}
        if spread is not None:
            inputs["row"] = torch.arange(len(spread), device=spread.device)
        action, chunk, extras = self.execution.step(state["chunk"], inputs, predict)
        if spread is None:
            return PolicyStep(action, {"chunk": chunk}, extras)
        after = {"chunk": chunk, "uncertainty": spread}
        return PolicyStep(action, after, {**extras, "uncertainty": spread})
