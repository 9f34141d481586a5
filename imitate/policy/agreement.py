"""Prediction of an action chunk that agrees with already planned actions: real-time chunking."""

from __future__ import annotations

import warnings
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.errors import UserError, nearest
from imitate.functional.realtime import Guidance, Prefix, prefix_weights


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
        obs: the newest prepared observation (1, ...), which relative actions refer to.
        seen: prepared observations (1, [F,] ...) that the network sees.
        planned: (n, A) in the units of the data, from the newest observation on.
        delay: number of planned actions that are executed before the prediction is available.
        guidance: see :meth:`imitate.RolloutPolicy.predict_chunk`.

    Raises:
        UserError: the policy cannot be made to agree, or ``guidance`` is unknown.
    """
    valid = get_args(Guidance)
    if guidance not in valid:
        raise UserError(f"guidance: unknown '{guidance}'; {nearest(guidance, valid)}")
    predict = getattr(algo, "predict_chunk", None)
    if predict is None or algo.execution is None:
        raise UserError(f"{algo.global_config.algo_name} predicts no chunks that could be guided")
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
    """Return how many planned actions are given to a prediction with this delay."""
    most: int = getattr(algo, "max_prefix", 0)
    if not most:
        raise UserError(not_trained(algo.global_config.algo_name))
    if delay > most:
        warnings.warn(
            f"predictions take longer than the {most} control steps of algo.prefix.max_delay that the policy is "
            "trained for: they continue the first planned actions only, and a chunk may begin with a jump",
            stacklevel=2,
        )
    return min(delay, most)


def not_trained(algo_name: str) -> str:
    """Explain why a policy cannot be given planned actions."""
    able = ("flow_policy", "diffusion_policy")
    remedy = (
        "train it with algo.prefix.max_delay, the longest delay in control steps"
        if algo_name in able
        else f"{' and '.join(able)} can be (algo.prefix.max_delay)"
    )
    return f"{algo_name} is not trained to be given planned actions (prefix): {remedy}"
