"""Actions that are relative to an observation: which one, in training and while a chunk is executed.

In training all actions of a chunk are relative to the newest observation that the policy sees when it predicts it; a
policy that predicts one action per step learns each relative to that step's own observation. Acting, the action of a
step is always relative to the observation given at that step: a chunk that is still being executed is rebased from the
last observation to the present one, which leaves the actions in the units of the data as they were predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from imitate.algo.execution import ChunkExecution
from imitate.algo.policy_state import PolicyState
from imitate.config import Config
from imitate.errors import ConfigError
from imitate.models.preprocess import Preprocess


def no_reference(
    preprocess: Preprocess, execution: ChunkExecution | None, batch_size: int, device: torch.device
) -> PolicyState:
    """Memory of the observation that the executed chunks of B policies are relative to; empty where none is needed."""
    if execution is None or not preprocess.reference_keys:
        return {}
    return {
        "reference": {
            key: torch.zeros(batch_size, *preprocess.obs_shapes[key], device=device)
            for key in preprocess.reference_keys
        }
    }


def rebased(
    preprocess: Preprocess,
    execution: ChunkExecution | None,
    obs: Mapping[str, Tensor],
    state: PolicyState,
) -> tuple[PolicyState, PolicyState]:
    """A state whose chunk is relative to observations (B, ...), and the memory of :func:`no_reference` of these."""
    if execution is None or "reference" not in state:
        return state, {}
    old = state["reference"]
    new = {key: obs[key] for key in old}
    policy = state["policy"]
    chunk = execution.mapped(
        policy["chunk"], lambda actions: preprocess.rebase_actions(actions, old, new)
    )
    return {**state, "policy": {**policy, "chunk": chunk}}, {"reference": new}


def check_relative(config: Config, preprocess: Preprocess) -> None:
    """Refuse an algorithm that cannot learn or act with actions relative to an observation.

    Raises:
        ConfigError: names the step and what stands against it.
    """
    step = next((step for step in preprocess.steps if step.references), None)
    if step is None:
        return
    key = step.references[0]
    place = f"train.preprocess: step '{step.name}' makes actions relative to observation '{key}'"
    observed = config.observation.modality_of("obs")
    if key not in observed:
        raise ConfigError(
            f"{place}; wanted one of observation.modalities.obs ({', '.join(observed) or 'none'})"
        )
    if config.train.online.enabled:
        raise ConfigError(
            f"{place}, which online RL does not know: set train.online.enabled to false"
        )
    section = config.algo
    needs = section.data_needs(config)
    if needs.transitions is not None or needs.subgoals is not None or not section.acts:
        raise ConfigError(
            f"{place}, which {config.algo_name} does not know; wanted an algorithm that imitates actions, such as bc, "
            "act, flow_policy or diffusion_policy"
        )
    if _chunk_at_each_step(section):
        raise ConfigError(
            f"{place}, but {config.algo_name} with a memory predicts a chunk at each step of a window, each with a "
            "reference of its own: set algo.chunk.enabled to false, or take bc without rnn and transformer"
        )


def _chunk_at_each_step(section: Any) -> bool:
    """True for the recurrent and transformer forms of bc that predict chunks."""
    chunk, rnn, transformer = (section.get(name, None) for name in ("chunk", "rnn", "transformer"))
    if chunk is None or rnn is None or not chunk.enabled:
        return False
    return bool(rnn.enabled or (transformer.enabled and not transformer.pred_future_acs))
