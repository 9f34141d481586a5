"""A trained policy with its preprocessing, which maps raw observations to raw actions.

A language instruction is embedded when an episode starts: the embedding is in the policy's table, or a text model
computes it. For real-time chunking a policy predicts a chunk that agrees with already planned actions.
"""

import functools
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.policy_state import PolicyState, remembered, rows_of
from imitate.errors import UserError, nearest
from imitate.functional.realtime import Guidance, Prefix, prefix_weights
from imitate.models.observation import ObservationEncoder
from imitate.policy.checks import (
    as_array,
    newest_frames,
    refuse_action,
    refuse_array,
    refuse_missing,
    refuse_not_finite,
)
from imitate.policy.language import TransformersText
from imitate.policy.renaming import Rename, given_names
from imitate.policy.uncertainty import Calibration
from imitate.system.instructions import LANGUAGE_KEY, Instructions

_SAME = 0.01
"""Largest relative distance between a stored and a newly computed embedding of an instruction that count as equal."""


def vector_of(known: Instructions, text: str) -> NDArray[np.float32]:
    """Return the embedding (D,) of an instruction.

    Instructions in the table need no text model. Others are embedded if the table names its text model and the
    model is on this machine; nothing is downloaded.

    Args:
        known: the policy's table of instructions.
        text: the instruction.

    Raises:
        UserError: the instruction is not in the table, and the table names no text model, or the model on this machine
            is a different one.
        ConfigError: the model is not on this machine, or its package is not installed.
    """
    if known.are_texts or text in known.names or known.encoder is None:
        return known.vector(text)
    vectors = text_model(known.encoder).embed([known.names[0], text])
    sample = vectors[0]
    stored = known.vectors[0]
    if sample.shape != stored.shape or not np.linalg.norm(
        sample - stored
    ) <= _SAME * np.linalg.norm(stored):
        raise UserError(
            f"instruction '{text}' is not known, and the text model '{known.encoder}' on this machine "
            f"differs from the one used in training (another embedding of '{known.names[0]}'); give a "
            f"known instruction: {'; '.join(known.names[:10])}"
        )
    vector: NDArray[np.float32] = vectors[1]
    return vector


@functools.lru_cache(maxsize=1)
def text_model(name: str) -> TransformersText:
    """Load a text model that is on this machine, and cache it; nothing is downloaded."""
    return TransformersText(name, local_only=True)


def agreeing_chunk(
    algo: Algo,
    obs: dict[str, Tensor],
    seen: dict[str, Tensor],
    planned: NDArray[np.float64],
    delay: int,
    guidance: Guidance,
) -> Tensor:
    """Predict a normalized chunk (1, K, A) that agrees with planned actions.

    With ``prefix`` and a delay beyond ``algo.prefix.max_delay`` only the first ``max_delay`` planned actions are given
    to the policy, and a warning is logged.

    Args:
        algo: the algorithm that predicts.
        obs: the newest prepared observation (1, ...), the reference of relative actions.
        seen: prepared observations (1, [F,] ...), the inputs of the network.
        planned: (n, A) planned actions in the units of the data, from the newest observation on.
        delay: number of planned actions that are executed before the prediction is available.
        guidance: see :meth:`imitate.RolloutPolicy.predict_chunk`.

    Raises:
        UserError: the policy does not support this guidance, or ``guidance`` is unknown.
    """
    valid = get_args(Guidance)
    if guidance not in valid:
        raise UserError(f"guidance: unknown '{guidance}'; {nearest(guidance, valid)}")
    predict = getattr(algo, "predict_chunk", None)
    if predict is None or algo.execution is None:
        raise UserError(
            f"{algo.global_config.algo_name} predicts no chunks that could be guided: use no guidance"
        )
    wanted = torch.as_tensor(
        planned[: algo.execution.size], dtype=torch.float32, device=algo.device
    )
    actions = algo.preprocess.normalize_actions(wanted[None], obs)
    end = actions.shape[1]
    chunk: Tensor
    if guidance == "prefix":
        chunk = predict(seen, planned=actions[:, : _given_steps(algo, delay)])
        return chunk
    weights = prefix_weights(min(delay, end), end, end, device=algo.device)
    chunk = predict(seen, prefix=Prefix(actions, weights, guidance))
    return chunk


def _given_steps(algo: Algo, delay: int) -> int:
    """Return the number of planned actions given to a prediction with this delay."""
    most: int = getattr(algo, "max_prefix", 0)
    if not most:
        raise UserError(not_trained(algo.global_config.algo_name))
    if delay > most:
        warnings.warn(
            f"predictions take longer than the {most} control steps of algo.prefix.max_delay, for "
            f"which the policy is trained: a chunk continues only the first {most} planned actions, "
            "so the robot may jump when it arrives",
            stacklevel=2,
        )
    return min(delay, most)


def not_trained(algo_name: str) -> str:
    """Return the message that a policy is not trained for the guidance ``prefix``, with the remedy."""
    able = ("flow_policy", "diffusion_policy")
    remedy = (
        "train it with algo.prefix.max_delay, the longest delay in control steps"
        if algo_name in able
        else f"{' and '.join(able)} can be trained in this way (algo.prefix.max_delay)"
    )
    return f"{algo_name} is not trained with planned actions as input (prefix): {remedy}"


class RolloutPolicy:
    """Policy that acts with an :class:`Algo` in an environment or on a robot.

    Each RolloutPolicy has its own state, so several of them (for several clients or robots) may share one Algo.

    Example:
        policy, _ = policy_from_checkpoint(ckpt_path="model.pth")
        policy.start_episode()
        action = policy(obs)

    Args:
        algo: the trained algorithm; it is put in evaluation mode.
        action_low: (A,) lower limit to which actions are clipped; None for no lower limit.
        action_high: (A,) upper limit to which actions are clipped; None for no upper limit.
        instructions: table of instructions and embeddings, for a policy that is conditioned on language.
        control_freq: control rate of the training data in Hz, or None if unknown. The caller must keep the rate; this
            class only reports it.
        number_names: names of the components of each observation and of ``actions`` by key, if the data had them.
        rename: maps a name under which the caller gives an observation to the policy's name, such as ``{"agent_pos":
            "state"}``; names that are not listed are the policy's own.
        ranges: ``mean``, ``std``, ``min`` and ``max`` of each observation in the training data, by its name in the
            data; empty if the checkpoint has none.
        calibration: uncertainties of the policy in demonstrations; None if the policy has no uncertainty.

    Attributes:
        obs_keys: keys that an observation must have, as the caller names them. ``lang_emb`` is not included if there
            are ``instructions``: :meth:`start_episode` sets the embedding, unless an observation contains it.
        goal_keys: keys that a goal must have; empty for a policy without goals.
        last_extras: read-only further outputs of the algorithm with the last action: normalized tensors with leading
            axis B, such as ``chunk`` (B, K, A) or ``uncertainty`` (B,); empty before the first action of an episode.
    """

    def __init__(
        self,
        algo: Algo,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        instructions: Instructions | None = None,
        control_freq: float | None = None,
        number_names: Mapping[str, Sequence[str]] | None = None,
        rename: Rename | None = None,
        ranges: Mapping[str, object] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.algo = algo
        self.control_freq = control_freq
        self.calibration = calibration
        self._low = np.asarray(-np.inf if action_low is None else action_low, dtype=np.float64)
        self._high = np.asarray(np.inf if action_high is None else action_high, dtype=np.float64)
        self.instructions = instructions
        self._all_keys = tuple(algo.obs_shapes)
        served = LANGUAGE_KEY if instructions is not None else None
        self.rename = dict(rename or {})
        self._goal_keys = tuple(algo.goal_shapes)
        self._given = given_names(self.rename, dict.fromkeys((*self._all_keys, *self._goal_keys)))
        self.number_names = {
            self._given.get(key, key): tuple(names) for key, names in (number_names or {}).items()
        }
        self.ranges = {self._given.get(key, key): entry for key, entry in (ranges or {}).items()}
        self.obs_keys = tuple(self._given[key] for key in self._all_keys if key != served)
        self.goal_keys = tuple(self._given[key] for key in self._goal_keys)
        self._state: PolicyState | None = None
        self._seen: dict[str, Tensor] = {}
        self._batch_size = 0
        self.last_extras: Mapping[str, Tensor] = MappingProxyType({})
        self.lang: str | None = None
        self._lang_emb: NDArray[np.float32] | None = None
        self._set_language(None, None)
        algo.set_eval()

    def start_episode(self, lang: str | None = None, mask: ArrayLike | None = None) -> None:
        """Reset the state for a new episode.

        Args:
            lang: the language instruction; may be omitted if ``instructions.names`` has only one.
            mask: (B,) bool, with batched observations: true for the episodes that start; None for all.

        Raises:
            UserError: the instruction is unknown; the message lists the known ones.
        """
        self.lang = lang
        self._set_language(lang, mask)
        self.last_extras = MappingProxyType({})
        if mask is None or self._state is None:
            self._state = None
            return
        fresh = torch.as_tensor(np.asarray(mask, dtype=bool), device=self.algo.device)
        self._state = self.algo.reset_state(self._state, fresh)

    @torch.inference_mode()
    def __call__(
        self,
        ob: Mapping[str, ArrayLike],
        goal: Mapping[str, ArrayLike] | None = None,
        batched_ob: bool = False,
    ) -> NDArray[np.float64]:
        """Return the action for an observation.

        Args:
            ob: raw observation by key: low-dim float arrays (D,), images (H, W, C) uint8; extra keys are ignored.
                Stacked frames (T, D) and (T, H, W, C), as from robomimic's frame-stacking wrapper, are accepted
                too, with T equal to ``train.frame_stack`` or ``train.seq_length``. Only the newest frame is used, since
                the policy remembers the earlier ones.
            goal: observations of the goal, if the policy has one.
            batched_ob: true if arrays have a leading batch dimension B; each row is from a separate episode.

        Returns:
            (A,) or (B, A) action in the units of the data, clipped to the limits.

        Raises:
            UserError: a key is missing or has the wrong shape, an image has floats outside [0, 1], or the batch size
                changed without :meth:`start_episode`.
            NotFiniteError: an observation or the action contains NaN or infinity. After any error the policy's state is
                the same as before the call, so the caller may continue with another observation.
        """
        obs = self._prepare(self._with_language(ob, batched_ob), self._all_keys, batched_ob)
        goal_obs = None
        if self._goal_keys:
            goal_obs = self._prepare(goal or {}, self._goal_keys, batched_ob)
        batch_size = len(next(iter(obs.values()))) if batched_ob else 1
        if self._state is None:
            self._state = self.algo.initial_state(batch_size)
            self._batch_size = batch_size
        elif self._batch_size not in (0, batch_size):  # 0 if the state is empty
            raise UserError(
                f"the batch had {self._batch_size} observations and now has {batch_size}; "
                "call start_episode() before the number of environments changes"
            )
        step = self.algo.act(obs, self._state, goal_obs)
        action = self._unnormalized(step.action, obs)
        refuse_action(action)
        self._state = step.state
        self._seen = obs
        self.last_extras = MappingProxyType(step.extras)
        return self._clipped(action if batched_ob else action[0])

    @property
    def state(self) -> PolicyState | None:
        """Memory of past observations and planned actions, with B rows; None at the beginning of an episode.

        It may be set to a state that a policy with the same networks had earlier. Tensors of a state are never changed
        in place, so one policy can act in several episodes alternately.
        """
        return self._state

    @state.setter
    def state(self, state: PolicyState | None) -> None:
        self._state = state
        self._batch_size = 0 if state is None else rows_of(state)
        self.last_extras = MappingProxyType({})

    @property
    def uncertainty_rank(self) -> NDArray[np.float64] | None:
        """Uncertainty (B,) of the last action as a quantile of the uncertainties in demonstrations.

        See :class:`Calibration`. None before the first action, and for a policy without a calibrated uncertainty.
        """
        found = self.last_extras.get("uncertainty")
        if found is None or self.calibration is None:
            return None
        return self.calibration.rank(found.cpu().numpy())

    @property
    def history(self) -> int:
        """Number of successive observations that a prediction uses, including the newest one."""
        return self.algo.frame_stack

    @property
    def max_prefix(self) -> int:
        """Largest number of planned actions that a prediction can be given, see ``prefix`` of :meth:`predict_chunk`.

        The number is 0 if the policy is not trained for the guidance ``prefix``.
        """
        return getattr(self.algo, "max_prefix", 0)

    @torch.no_grad()  # not in inference mode, because guidance may need gradients
    def predict_chunk(
        self,
        history: Sequence[Mapping[str, ArrayLike]],
        planned: ArrayLike | None = None,
        delay: int = 0,
        guidance: Guidance = "identity",
        batched_ob: bool = False,
    ) -> NDArray[np.float64]:
        """Predict the actions from the newest observation on, without regard to an earlier plan.

        This is for callers that execute chunks themselves. The policy's state is neither used nor changed.

        Args:
            history: raw observations of successive control steps, the newest last: :attr:`history` of them, or fewer at
                the beginning of an episode.
            planned: (n, A) actions planned from the newest observation on, which are executed until the prediction is
                available; a flow or diffusion policy then predicts a chunk that agrees with them (real-time chunking).
                None to predict without a plan.
            delay: number of planned actions that will be executed before the prediction is available.
            guidance: ``identity`` and ``vjp`` guide the prediction towards all planned actions, with the identity or
                the true Jacobian of the network; with ``prefix`` the chunk begins with the first ``delay`` planned
                actions, at most :attr:`max_prefix`. See :mod:`imitate.functional.realtime`.
            batched_ob: true if arrays of the history have a leading batch dimension B; not allowed with ``planned``.

        Returns:
            actions (K, A), or (B, K, A), in the units of the data, clipped to the limits; K is 1 if the policy predicts
            single actions.

        Raises:
            UserError: the policy has goals, or a memory (such as a recurrent state) that a history of observations
                cannot replace; an observation does not fit; or ``planned`` is given, but the policy cannot be guided or
                is not trained for ``prefix``.
        """
        algo = self.algo
        if self.goal_keys:
            raise UserError(
                f"the policy has goals ({', '.join(self.goal_keys)}), but chunks are predicted without a "
                "goal: call the policy at every control step"
            )
        if not history:
            raise UserError("an empty history: expected at least one observation")
        if batched_ob and planned is not None:
            raise UserError(
                "planned actions need a single episode, but batched_ob is True: set it to False, or planned to None"
            )
        prepared = [
            self._prepare(self._with_language(ob, batched_ob), self._all_keys, batched_ob)
            for ob in history[-self.history :]
        ]
        state = algo.initial_state(next(iter(prepared[0].values())).shape[0])
        if set(state["policy"]) - {"chunk", "uncertainty"}:
            raise UserError(
                f"{algo.global_config.algo_name} has a memory beyond its last observations, so its "
                "actions cannot be predicted from a history: call the policy at every control step"
            )
        for obs in prepared:
            seen, kept = remembered(obs, state, algo.frame_stack)
            before, state = state, {**state, **kept}
        if planned is not None:
            normalized = agreeing_chunk(algo, obs, seen, np.asarray(planned), delay, guidance)
        else:
            step = algo.act(obs, before)
            normalized = step.extras.get("chunk", step.action[:, None])
        chunk = self._unnormalized(normalized, obs)
        refuse_action(chunk)
        clipped = self._clipped(chunk)
        first: NDArray[np.float64] = clipped[0]
        return clipped if batched_ob else first

    @property
    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lowest and highest action (A,); infinite if actions are not clipped."""
        size = (self.algo.preprocess.actions.sent_dim,)
        return np.broadcast_to(self._low, size), np.broadcast_to(self._high, size)

    @property
    def raw_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one step of each observation and goal, by the names of :attr:`obs_keys` and :attr:`goal_keys`."""
        shapes = self.algo.preprocess.raw_shapes
        return {given: shapes[key] for key, given in self._given.items()}

    @property
    def modalities(self) -> dict[str, str]:
        """Modality of each observation and goal, by the names of :attr:`obs_keys` and :attr:`goal_keys`."""
        kinds = self.algo.preprocess.modalities
        return {given: kinds[key] for key, given in self._given.items()}

    @torch.inference_mode()
    def observe(self, reward: ArrayLike) -> None:
        """Give the policy the reward of its last action, or the rewards (B,) of a batch.

        The call is optional. Policies that are conditioned on returns, such as ``dt``, subtract the reward
        from their target return, which otherwise stays constant. All other policies ignore the reward.
        """
        if self._state is not None:
            received = np.broadcast_to(np.asarray(reward, dtype=np.float32), (self._batch_size,))
            rewards = torch.as_tensor(received.copy(), device=self.algo.device)
            self._state = self.algo.observe_reward(self._state, rewards)

    def check(self, ob: Mapping[str, ArrayLike], batched_ob: bool = False) -> None:
        """Raise NotFiniteError if a call of the policy with this observation would raise it.

        The observation may lack keys. The state of the policy is not changed.
        """
        for key in self.obs_keys:
            if key in ob:
                value = ob[key]
                value = value if isinstance(value, Tensor) else as_array(key, value)
                refuse_not_finite(key, value if batched_ob else value[None])

    def cut_plan(self) -> None:
        """Discard the planned actions that are not yet executed, for example after an intervention.

        Past observations stay in memory; the next action is the first of a new plan.
        """
        if self._state is not None:
            self._state = self.algo.cut_plan(self._state)

    @torch.inference_mode()
    def planned_actions(self) -> NDArray[np.float64] | None:
        """Return the planned actions (B, K, A) from the last action on, clipped to the limits.

        If the plan was made some steps ago, fewer actions are left, and the last one is repeated. Returns None if the
        policy predicts single actions.
        """
        chunk = self.last_extras.get("chunk")
        return None if chunk is None else self._clipped(self._unnormalized(chunk, self._seen))

    @torch.inference_mode()
    def subgoal(self) -> dict[str, NDArray[np.float32]]:
        """Return the subgoal of the last action: {key: (B, ...)} in the units of the data.

        Images are (C, H, W) in [0, 1]. The dict is empty if the policy has no subgoals, or none that are observations.
        """
        prepare = self.algo.preprocess
        named = {
            key.removeprefix("subgoal/"): value
            for key, value in self.last_extras.items()
            if key.startswith("subgoal/")
        }
        return {
            self._given.get(key, key): prepare.unnormalize_obs(key, value).cpu().numpy()
            for key, value in named.items()
            if key in prepare.raw_shapes
        }

    @torch.inference_mode()
    def keypoints(self, ob: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float32]]:
        """Return the keypoints of the image encoders' spatial softmax layers by image: (K, 2), x and y in pixels.

        Args:
            ob: one raw observation, as for a call of the policy.
        """
        parts = self.algo.active_nets.modules()
        encoder = next((part for part in parts if isinstance(part, ObservationEncoder)), None)
        if encoder is None:
            return {}
        obs = self._prepare(self._with_language(ob, False), self._all_keys, False)
        found = encoder.keypoints(obs)
        return {self._given[key]: places[0].cpu().numpy() for key, places in found.items()}

    def _unnormalized(self, normalized: Tensor, obs: dict[str, Tensor]) -> NDArray[np.float32]:
        """Convert normalized actions, predicted from prepared observations, to the units of the data."""
        action: NDArray[np.float32] = (
            self.algo.preprocess.unnormalize_actions(normalized, obs).cpu().numpy()
        )
        return action

    def _clipped(self, action: NDArray[np.float32]) -> NDArray[np.float64]:
        """Clip an action to the limits of the robot."""
        # On small arrays np.clip takes several times as long as these two ufuncs.
        clipped: NDArray[np.float64] = np.maximum(action, self._low, dtype=np.float64)
        return np.minimum(clipped, self._high)

    def _set_language(self, lang: str | None, mask: ArrayLike | None) -> None:
        """Store the embedding of an instruction for all rows, or for the rows in which the mask is true."""
        known = self.instructions
        if known is None:
            return
        if lang is None and len(known.names) == 1:
            lang = known.names[0]
        if mask is None or self._state is None or self._lang_emb is None:
            self._lang_emb = None if lang is None else vector_of(known, lang)
        elif lang is not None:
            rows = np.broadcast_to(self._lang_emb, (self._batch_size, known.size)).copy()
            rows[np.asarray(mask, dtype=bool)] = vector_of(known, lang)
            self._lang_emb = rows

    def _with_language(self, ob: Mapping[str, ArrayLike], batched: bool) -> Mapping[str, ArrayLike]:
        """Return the observation with the embedding of the instruction added, if the policy uses one."""
        if self.instructions is None or LANGUAGE_KEY in ob:
            return ob
        if self._lang_emb is None:
            shown = "; ".join(f"'{name}'" for name in self.instructions.names[:10])
            raise UserError(
                f"the policy was trained on several tasks: name one with start_episode(lang=...): {shown}"
            )
        lang_emb = self._lang_emb
        first = next((ob[key] for key in self.obs_keys if key in ob), None)
        if batched and lang_emb.ndim == 1 and first is not None:
            lang_emb = np.broadcast_to(lang_emb, (len(np.asarray(first)), lang_emb.size))
        return {**ob, LANGUAGE_KEY: lang_emb}

    def _prepare(
        self, raw: Mapping[str, ArrayLike], keys: tuple[str, ...], batched: bool
    ) -> dict[str, Tensor]:
        """Convert raw arrays to network inputs with a batch dimension."""
        refuse_array(raw, keys)
        preprocess = self.algo.preprocess
        if not batched:
            vectors = preprocess.plan(keys).of_vectors(raw, self._given)
            if vectors is not None:
                return vectors
        shapes, arrays, one_step = preprocess.raw_shapes, {}, True
        for key in keys:
            given = self._given[key]
            if given not in raw:
                refuse_missing(raw, [self._given[key] for key in keys])
            value = raw[given]
            arrays[key] = value = value if isinstance(value, Tensor) else as_array(given, value)
            one_step = one_step and value.ndim == len(shapes[key]) + batched
        if not one_step:
            stacks = {1, self.algo.frame_stack, self.algo.global_config.train.seq_length}
            lang_key = LANGUAGE_KEY if self.instructions is not None else None
            arrays = newest_frames(arrays, shapes, stacks, batched=batched, lang_key=lang_key)
        for key, value in arrays.items():
            arrays[key] = value = value if batched else value[None]
            refuse_not_finite(key, value)
        return preprocess.prepare_obs(arrays, keys)
