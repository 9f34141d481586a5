"""Fitted Q evaluation: the value of a policy from recorded transitions alone.

Le, Voloshin, Yue, "Batch Policy Learning under Constraints", ICML 2019 (arXiv:1903.08738); its use for policy selection
is studied by Paine et al., "Hyperparameter Selection for Offline Reinforcement Learning" (arXiv:2007.09055). For the
policy pi that is judged, and members e of an ensemble,

    L_e = E[ w_e (Q_e(s, a) - y_e)^2 ],  y_e = r + discount Q'_e(s', pi(s')), without Q'_e after a terminal
    V_e = mean over first states of Q'_e(s, pi(s))

where Q' follows Q by Polyak averaging, several actions are drawn if pi is stochastic, and w_e are Poisson bootstrap
weights of the demos, also in V_e. So members differ by resampled demos and by initial weights. All policies share the
same bootstrap weights and batches, so differences between policies are more precise than their values.

Targets are clipped to the bounds that rewards and discount set for every policy; otherwise extrapolation errors would
grow without limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor

from imitate.config.observation import ObservationConfig
from imitate.evaluation.fqe_data import Answers, Recorded, answers_of, open_data, refuse_memory
from imitate.models.actor import GroupEncoder
from imitate.models.critics import CriticEnsemble, polyak_update_, target_of
from imitate.models.observation import ObservationEncoder
from imitate.policy.loading import policy_from_checkpoint

HIDDEN = (128, 128)
LEARNING_RATE = 1e-3
TARGET_RATE = 0.02
"""Polyak rate of the target networks per update: values propagate one step back in about 50 updates."""


@dataclass(frozen=True)
class FQEPlan:
    """Settings of fitted Q evaluation.

    Args:
        updates: gradient steps per policy.
        batch_size: transitions per update.
        members: number of networks in the ensemble.
        seed: seed of initial weights, batch order and bootstrap samples.
    """

    updates: int = 5000
    batch_size: int = 256
    members: int = 5
    seed: int = 0


@dataclass(frozen=True)
class FQEResult:
    """Value of a policy: mean discounted return from the demos' first states.

    Attributes:
        members: values estimated by the ensemble's members.
        checkpoint: checkpoint of the policy.
        demo_return: mean discounted return of the demos themselves.
        warning: a limitation of the estimate.
        behind: difference to the best policy of the ranking, by member; 0 for the best.
    """

    members: tuple[float, ...]
    demo_return: float
    checkpoint: str | None = None
    warning: str | None = None
    behind: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """Mean of the members."""
        return fmean(self.members)

    @property
    def interval(self) -> tuple[float, float]:
        """Mean minus and plus two standard deviations of the members."""
        return _interval(self.members)

    @property
    def behind_interval(self) -> tuple[float, float]:
        """Interval of the difference to the best policy, computed in the same way."""
        return _interval(self.behind)


def fitted_q_evaluation(
    recorded: Recorded,
    answers: Answers,
    plan: FQEPlan = FQEPlan(),  # noqa: B008 - frozen
    on_update: Callable[[], None] | None = None,
) -> FQEResult:
    """Estimate the value of a policy.

    Args:
        recorded: the transitions.
        answers: the policy's actions in their states.
        plan: settings.
        on_update: called after each update.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        critic = _critic(recorded, plan.members)
        target = target_of(critic)
        counts = torch.poisson(torch.ones(plan.members, recorded.num_demos))
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = torch.optim.Adam(critic.parameters(), LEARNING_RATE, fused=True)
    usable = recorded.weights.nonzero()[:, 0]
    for _ in range(plan.updates):
        drawn = torch.randint(len(usable), (plan.batch_size,), generator=generator)
        loss = _loss(critic, target, recorded, answers, counts, usable[drawn])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        polyak_update_(target, critic, TARGET_RATE)
        if on_update is not None:
            on_update()
    with torch.no_grad():
        first = _values(target, recorded.states[recorded.first], answers.first)
    chosen = counts / counts.sum(-1, keepdim=True).clamp(min=1.0)
    values = (first * chosen).sum(-1) * recorded.scale
    return FQEResult(tuple(values.tolist()), recorded.demo_return)


def evaluate_checkpoint(
    checkpoint: Path,
    data: Path,
    *,
    discount: float | None = None,
    filter_key: str | None = None,
    plan: FQEPlan = FQEPlan(),  # noqa: B008 - frozen
    on_update: Callable[[], None] | None = None,
) -> FQEResult:
    """Estimate the value of a checkpoint's policy from a demonstration file.

    Args:
        checkpoint: checkpoint of a policy without memory and goals.
        data: demonstrations with rewards.
        discount: discount per step, or None for the checkpoint's own, or else 0.99.
        filter_key: mask of the demos, or None for all.
        plan: settings.
        on_update: called after each update.

    Raises:
        UserError: the policy cannot be evaluated in this way, or the data lack something.
    """
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=checkpoint)
    warning = refuse_memory(policy.algo, checkpoint)
    if discount is None:
        discount = float(policy.algo.algo_config.get("discount", 0.99))
    dataset, recorded = open_data(data, policy, discount, filter_key)
    shapes = ckpt["shape_metadata"]
    low, high = shapes.get("action_low"), shapes.get("action_high")
    limits = (
        torch.as_tensor(-torch.inf if low is None else low),
        torch.as_tensor(torch.inf if high is None else high),
    )
    answers = answers_of(policy, limits, dataset, recorded, plan.seed)
    result = fitted_q_evaluation(recorded, answers, plan, on_update)
    return replace(result, checkpoint=str(checkpoint), warning=warning)


def ranked(results: Sequence[FQEResult]) -> list[FQEResult]:
    """Sort results by value, best first, each with its distance to the best."""
    order = sorted(results, key=lambda result: -result.value)
    best = order[0].members
    return [replace(result, behind=_difference(best, result.members)) for result in order]


def _loss(
    critic: CriticEnsemble,
    target: CriticEnsemble,
    recorded: Recorded,
    answers: Answers,
    counts: Tensor,
    rows: Tensor,
) -> Tensor:
    """Compute the squared error, summed over members, averaged over the transitions ``rows`` (B,)."""
    with torch.no_grad():
        following = _values(target, recorded.next_states[rows], answers.following[rows])
        wanted = recorded.rewards[rows] + recorded.discounts[rows] * following
        wanted = wanted.clamp(*recorded.bounds)
    errors = _values(critic, recorded.states[rows], recorded.actions[rows, None]) - wanted
    each = counts[:, recorded.demo[rows]] * recorded.weights[rows]
    return (each * errors.square()).sum(0).mean()


def _values(critic: CriticEnsemble, states: Tensor, actions: Tensor) -> Tensor:
    """Compute each member's values ``(E, B)``, averaged over K actions ``(B, K, A)``."""
    values: Tensor = critic({"state": states}, actions).mean(-1)
    return values


def _critic(recorded: Recorded, members: int) -> CriticEnsemble:
    encoder = ObservationEncoder(
        {"state": (recorded.states.shape[-1],)}, {"state": "low_dim"}, ObservationConfig().encoder
    )
    dim = recorded.actions.shape[-1]
    return CriticEnsemble(GroupEncoder(encoder), dim, HIDDEN, members, layer_norm=True)


def _difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(first, second, strict=True))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    middle, width = fmean(values), 2.0 * stdev(values) if len(values) > 1 else 0.0
    return middle - width, middle + width
