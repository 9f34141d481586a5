"""Actions that are relative to an observation: their reference in training and while a chunk is executed.

In training, all actions of a chunk are relative to the newest observation from which it is predicted. If a policy
predicts one action per step, each action is relative to the observation of its own step. During acting, the action of a
step is always relative to the observation of that step: a chunk that is still being executed is rebased from the last
observation to the current observation, which does not change its actions in the units of the data.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from imitate.algo.base.encoding import Encoding
from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.policy_state import Observed, PolicyState, no_frames, remembered
from imitate.config import Config
from imitate.errors import ConfigError, UserError
from imitate.models.preprocess import Preprocess


class Executing(Protocol):
    """Parts of an algorithm that this module's functions need: encoding, preprocessing and execution of chunks."""

    encoding: Encoding
    preprocess: Preprocess
    device: torch.device

    @property
    def execution(self) -> ChunkExecution | None:
        """Execution of predicted chunks; None: the policy predicts single actions."""


def no_memory(algo: Executing, batch_size: int) -> Observed:
    """Return the observation memory of B policies before the first step: frames and the reference of chunks."""
    frames = no_frames(algo.encoding, batch_size, algo.device)
    return {**frames, **no_reference(algo, batch_size)}


def recalled(
    algo: Executing, obs: dict[str, Tensor], state: PolicyState
) -> tuple[dict[str, Tensor], PolicyState, Observed]:
    """Return observations with earlier frames (B, [F,] ...), the state rebased to them, and the memory to keep."""
    state, reference = rebased(algo, obs, state)
    obs, frames = remembered(obs, state, algo.encoding.frames)
    return obs, state, {**frames, **reference}


def no_reference(algo: Executing, batch_size: int) -> Observed:
    """Return zeros for the reference observation of executed chunks; an empty dict if actions are not relative."""
    keys, shapes = algo.preprocess.reference_keys, algo.preprocess.obs_shapes
    if algo.execution is None or not keys:
        return {}
    none = {key: torch.zeros(batch_size, *shapes[key], device=algo.device) for key in keys}
    return {"reference": none}


def rebased(
    algo: Executing, obs: Mapping[str, Tensor], state: PolicyState
) -> tuple[PolicyState, Observed]:
    """Return the state with its chunk rebased to observations (B, ...), and the memory with these as the reference."""
    execution = algo.execution
    if execution is None or "reference" not in state:
        return state, {}
    old = state["reference"]
    new = {key: obs[key] for key in old}
    policy = state["policy"]
    chunk = execution.mapped(
        policy["chunk"], lambda actions: algo.preprocess.rebase_actions(actions, old, new)
    )
    return {**state, "policy": {**policy, "chunk": chunk}}, {"reference": new}


def check_relative(config: Config, preprocess: Preprocess) -> None:
    """Refuse an algorithm that cannot learn or act with actions relative to an observation.

    Raises:
        ConfigError: the algorithm cannot do so; the message names the preprocessing step and the reason.
    """
    step = next((step for step in preprocess.steps if step.imitates), None)
    if step is None:
        return
    section = config.algo
    needs = section.data_needs(config)
    place = f"train.preprocess: step '{step.name}' changes actions"
    if config.train.online.enabled:
        raise ConfigError(
            f"{place}, which online RL does not support: set train.online.enabled to false"
        )
    if needs.transitions is not None or needs.subgoals is not None or not section.acts:
        raise ConfigError(
            f"{place}, which {config.algo_name} does not support; expected an algorithm that "
            "imitates actions, such as bc, act, flow_policy or diffusion_policy"
        )
    observed = config.observation.modality_of("obs")
    for step in preprocess.steps:
        place = f"train.preprocess: step '{step.name}' makes actions relative to observation"
        for key in step.references:
            if key not in observed:
                raise ConfigError(
                    f"{place} '{key}'; wanted one of observation.modalities.obs ({', '.join(observed) or 'none'})"
                )
            if _chunk_at_each_step(section):
                raise ConfigError(
                    f"{place} '{key}', but {config.algo_name} with a memory predicts a chunk at each step of a window, "
                    "each with its own reference: set algo.chunk.enabled to false, or use bc without rnn and "
                    "transformer"
                )


def check_deltas(algo: Any, preprocess: Preprocess) -> None:
    """Refuse an algorithm that cannot learn differences between the actions of a chunk.

    Args:
        algo: algorithm that was built for the preprocessing pipeline.
        preprocess: the preprocessing pipeline.

    Raises:
        ConfigError: the algorithm cannot do so; the message names the preprocessing step and the remedy.
    """
    step = next((step for step in preprocess.steps if step.chains), None)
    if step is None:
        return
    place = f"train.preprocess: step '{step.name}' makes differences between the actions of a chunk"
    if not getattr(algo, "learns_deltas", False):
        raise ConfigError(
            f"{place}, which {algo.global_config.algo_name} does not support; expected act, flow_policy or "
            "diffusion_policy, or the step 'relative_actions'"
        )
    if algo.max_prefix:
        raise ConfigError(
            f"{place}, but algo.prefix.max_delay needs absolute actions: set it to 0, or use 'relative_actions'"
        )


def refuse_guided_deltas(preprocess: Preprocess) -> None:
    """Raise UserError if the network learns differences between actions, which planned actions cannot guide."""
    step = next((step for step in preprocess.steps if step.chains), None)
    if step is not None:
        raise UserError(
            f"the policy learned differences between actions ('{step.name}'), so real-time "
            "chunking cannot guide it by planned actions: join chunks in another way, or train with "
            "'relative_actions'"
        )


def _chunk_at_each_step(section: Any) -> bool:
    """Return true for the recurrent and transformer variants of bc that predict chunks."""
    chunk, rnn, transformer = (section.get(name, None) for name in ("chunk", "rnn", "transformer"))
    if chunk is None or rnn is None or not chunk.enabled:
        return False
    return bool(rnn.enabled or (transformer.enabled and not transformer.pred_future_acs))
