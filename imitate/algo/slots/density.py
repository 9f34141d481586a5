"""Action distribution of a policy, converted to the normalized actions of another algorithm.

An action x of the policy is the action ``offset + scale x`` of the other algorithm, so that a Gaussian remains a
Gaussian, and a mixture a mixture.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.errors import CheckpointError
from imitate.models.actor import Actor, PolicyAndValue, RecurrentActor, TransformerActor
from imitate.models.categorical import Categorical
from imitate.models.heads import (
    ActionDistribution,
    DeterministicHead,
    Gaussian,
    GaussianHead,
    GaussianMixture,
    GMMHead,
)
from imitate.models.preprocess import Preprocess


def without_density(algo: Algo, around: Preprocess) -> str | None:
    """Return the reason why a policy has no density of single actions in units of ``around``, or None if it has one."""
    name, net = algo.global_config.algo_name, algo.nets[algo.main_net]
    take = "take a policy of bc with algo.gaussian.enabled or algo.gmm.enabled"
    head = getattr(net, "head", None)
    if isinstance(head, DeterministicHead):
        return f"the policy of {name} is deterministic, so its actions have no density: {take}"
    known = isinstance(net, Actor | RecurrentActor | TransformerActor) or (
        isinstance(net, PolicyAndValue) and net.memory is None
    )
    if not known or algo.execution is not None or algo.state_shapes is not None:
        return f"the actions of this policy of {name} have no density of single steps: {take}"
    own, steps = algo.preprocess, (*algo.preprocess.chosen_steps, *around.chosen_steps)
    if (
        own.actions.converts
        or around.actions.converts
        or any(step.changes_actions for step in steps)
    ):
        return f"{name} or this training converts actions (train.preprocess, action_config): {take} without that"
    offset, scale = _units(own, around)
    same = torch.allclose(scale, torch.ones_like(scale)) and torch.allclose(offset, 0 * offset)
    if isinstance(head, GaussianHead | GMMHead) and head.use_tanh and not same:
        return f"the policy of {name} has actions in other units than here: {take}"
    return None


def distribution_of(
    algo: Algo, obs: Mapping[str, Tensor], around: Preprocess
) -> ActionDistribution:
    """Return the policy's distribution in the units of ``around``.

    Args:
        algo: the policy, for which :func:`without_density` returns None.
        obs: (B, ...) or (B, F, ...) observations as the policy prepares them, the newest last.
        around: preprocessing of the other algorithm.
    """
    frames = {
        key: value if value.dim() > 1 + len(algo.obs_shapes[key]) else value.unsqueeze(1)
        for key, value in obs.items()
    }
    policy = algo.action_mask.policy(own_distribution(algo, frames), frames)
    return _in_units(policy, *_units(algo.preprocess, around))


def own_distribution(algo: Algo, frames: dict[str, Tensor]) -> ActionDistribution:
    """Return the distribution in the newest of the frames (B, F, ...), in the policy's own units."""
    net = algo.nets[algo.main_net]
    if isinstance(net, PolicyAndValue):
        return net.actor(last_frames(frames, algo.frame_stack))
    assert isinstance(net, Actor | RecurrentActor | TransformerActor)
    rows, steps = next(iter(frames.values())).shape[:2]
    memory = net.initial_memory(rows)
    windows = [
        last_frames({key: value[:, : step + 1] for key, value in frames.items()}, algo.frame_stack)
        for step in range(0 if memory else steps - 1, steps)
    ]
    for window in windows:
        inputs, memory = net.observe(window, None, memory)
    features = inputs["features"] if "features" in inputs else net(inputs["obs"])[0]
    return net.head(features[:, -1] if features.dim() == 3 else features)  # type: ignore[no-any-return]


def last_frames(frames: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the last ``count`` frames (B, count, ...), the first repeated if necessary; (B, ...) for ``count`` 1."""
    rows = next(iter(frames.values())).shape[1] - 1
    chosen = [max(rows - back, 0) for back in reversed(range(count))]
    return {
        key: value[:, rows] if count == 1 else value[:, chosen] for key, value in frames.items()
    }


def _units(own: Preprocess, around: Preprocess) -> tuple[Tensor, Tensor]:
    """Return offset and scale (A,) that convert a policy's normalized actions to those of the outer algorithm."""
    ends = torch.stack([torch.zeros_like(own.action_offset), torch.ones_like(own.action_offset)])
    low, high = around.normalize_actions(own.unnormalize_actions(ends))
    return low, high - low


def _in_units(policy: ActionDistribution, offset: Tensor, scale: Tensor) -> ActionDistribution:
    """Return the distribution of ``offset + scale a``; distributions of choices and bounded actions stay unchanged."""
    if isinstance(policy, Gaussian):
        return Gaussian(offset + scale * policy.mean, scale.abs() * policy.stds)
    if isinstance(policy, GaussianMixture):
        means = offset + scale * policy.means
        return GaussianMixture(means, scale.abs() * policy.stds, policy.logits)
    return policy


def moments_of(policy: ActionDistribution) -> tuple[Tensor, Tensor]:
    """Return mean and variance (B, A) of a distribution over actions; for choices, the probabilities and 0.

    Raises:
        CheckpointError: mean and variance are not known, because actions are bounded by a tanh.
    """
    if isinstance(policy, Categorical):
        return policy.probabilities, torch.zeros_like(policy.logits)
    if isinstance(policy, Gaussian):
        return policy.mean, policy.stds.square()
    if isinstance(policy, GaussianMixture):
        weights, mean = policy.logits.exp().unsqueeze(-1), policy.mean
        squares = (weights * (policy.means.square() + policy.stds.square())).sum(-2)
        return mean, squares - mean.square()
    raise CheckpointError(
        "algo.base.checkpoint: this policy applies a tanh to its samples: give a checkpoint of bc with "
        "algo.gaussian.enabled or algo.gmm.enabled, or set algo.imitation.kl_weight to 0"
    )
