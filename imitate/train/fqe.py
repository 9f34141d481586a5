"""Fitted Q evaluation: the value of a policy from recorded transitions alone.

Le, Voloshin, Yue, "Batch Policy Learning under Constraints", ICML 2019 (arXiv:1903.08738); its use for selecting
policies is studied by Paine et al., "Hyperparameter Selection for Offline Reinforcement Learning" (arXiv:2007.09055).
For the policy pi that is judged, and members e of an ensemble,

    L_e = E[ w_e (Q_e(s, a) - y_e)^2 ],  y_e = r + discount Q'_e(s', pi(s')), without Q'_e after a terminal
    V_e = mean over first states of Q'_e(s, pi(s))

where Q' follows Q by Polyak averaging, several actions are drawn if pi is stochastic, and w_e are Poisson bootstrap
weights of the demos, also in V_e. So members differ by resampled demos and by initial weights. All policies share the
same bootstrap weights and batches, so differences between policies are more precise than their values.

Targets are clipped to the bounds that rewards and discount set for every policy; otherwise extrapolation errors would
grow without limit.

The inputs are recorded transitions and, for each policy, its actions in the states of these transitions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.config.data_needs import Transitions
from imitate.config.observation import ObservationConfig
from imitate.data import DatasetFile, SequenceDataset
from imitate.errors import CheckpointError, DatasetError
from imitate.models.actor import GroupEncoder
from imitate.models.critics import CriticEnsemble, polyak_update_, target_of
from imitate.models.observation import ObservationEncoder
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy

ROWS = 1024
"""Number of states for which a policy computes actions at once."""

SAMPLES = 8
"""Number of actions drawn from a stochastic policy."""


@dataclass(frozen=True)
class RecordedTransitions:
    """N transitions of D demos. States and actions are standardized, rewards divided by ``scale``.

    Attributes:
        states, next_states: (N, S) all low-dimensional observations of the file.
        actions: (N, A) actions that the robot executed, standardized.
        rewards, discounts: (N,) rewards divided by ``scale``, and discounts, which are 0 after terminals.
        weights: (N,) 0 if the next state is unknown, else 1.
        demo: (N,) number of the demo.
        first: (D,) row of each demo's first step.
        action_offset, action_scale: (A,) offset and scale of the standardization.
        scale: divisor of rewards and values.
        bounds: lowest and highest value that any policy can have, scaled.
        demo_return: mean discounted return of the demos, up to their first terminal, unscaled.
    """

    states: Tensor
    next_states: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    weights: Tensor
    demo: Tensor
    first: Tensor
    action_offset: Tensor
    action_scale: Tensor
    scale: float
    bounds: tuple[float, float]
    demo_return: float

    @property
    def num_demos(self) -> int:
        """Number D of demos."""
        return len(self.first)


@dataclass(frozen=True)
class Answers:
    """K actions of a policy per state, standardized like the recorded ones.

    Attributes:
        following: (N, K, A) actions in the next states.
        first: (D, K, A) actions in the demos' first states.
    """

    following: Tensor
    first: Tensor


def state_keys(path: Path, filter_key: str | None = None) -> list[str]:
    """Return the low-dimensional observations of a file, the inputs of the value networks.

    Raises:
        DatasetError: a demo lacks rewards or low-dimensional observations.
    """
    with DatasetFile(path) as file:
        demo = file.demos(filter_key)[0]
        keys = [key for key in file.obs_keys(demo) if len(file.shape(demo, f"obs/{key}")) == 2]
        if not file.has(demo, "rewards"):
            raise DatasetError(
                f"{path}: {demo} has no 'rewards', which fitted Q evaluation needs: record them, or write 1 for steps "
                "in which the task is solved"
            )
    if not keys:
        raise DatasetError(
            f"{path}: {demo} has no low-dimensional observations, which fitted Q evaluation uses as the state; "
            f"it has {', '.join(file.obs_keys(demo))}"
        )
    return keys


def open_data(
    path: Path, policy: RolloutPolicy, discount: float, filter_key: str | None = None
) -> tuple[SequenceDataset, RecordedTransitions]:
    """Open a file as a dataset with the observations of a policy, and read its transitions.

    Raises:
        DatasetError: rewards are missing, or all 0; observations of the policy or low-dimensional ones are missing.
    """
    keys = state_keys(path, filter_key)
    train = policy.algo.global_config.train
    dataset = SequenceDataset(
        path,
        obs_keys=[*policy.algo.obs_shapes, *keys],
        action_keys=train.action_keys,
        dataset_keys=("actions", "rewards", "terminals"),
        frame_stack=policy.algo.frame_stack,
        filter_by_attribute=filter_key,
        transitions=Transitions(discount),
        instructions=policy.instructions,
    )
    return dataset, _recorded(dataset, keys, discount)


def _recorded(dataset: SequenceDataset, keys: list[str], discount: float) -> RecordedTransitions:
    parts: list[dict[str, Tensor]] = []
    for rows in _pieces(len(dataset)):
        batch = dataset[rows]
        parts.append(
            {
                "states": torch.cat([batch["obs"][key][:, -1] for key in keys], -1),
                "next_states": torch.cat([batch["next_obs"][key][:, -1] for key in keys], -1),
                "actions": batch["actions"][:, -1],
                "rewards": batch["n_step_rewards"],
                "discounts": batch["discounts"],
                "weights": batch["weight"][:, -1] if "weight" in batch else torch.ones(len(rows)),
            }
        )
    data = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    rewards, discounts = data["rewards"], data["discounts"]
    if not rewards.any():
        raise DatasetError(
            f"{dataset.hdf5_path}: all rewards are 0, so every policy has the value 0: write "
            "the task's rewards into the file, or use demonstrations with other rewards"
        )
    starts, ends = dataset.store.demo_start, dataset.store.demo_end
    returns = rewards.tolist()
    for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for row in range(end - 2, first - 1, -1):
            returns[row] += float(discounts[row]) * returns[row + 1]
    scale = max(map(abs, returns)) or 1.0
    offset, spread = _standard(data["states"])
    action_offset, action_scale = _standard(data["actions"])
    lengths = torch.as_tensor(ends - starts)
    return RecordedTransitions(
        states=(data["states"] - offset) / spread,
        next_states=(data["next_states"] - offset) / spread,
        actions=(data["actions"] - action_offset) / action_scale,
        rewards=rewards / scale,
        discounts=discounts,
        weights=data["weights"],
        demo=torch.arange(len(starts)).repeat_interleave(lengths),
        first=torch.as_tensor(starts),
        action_offset=action_offset,
        action_scale=action_scale,
        scale=scale,
        bounds=_bounds(rewards / scale, discounts, discount),
        demo_return=math.fsum(returns[row] for row in starts.tolist()) / len(starts),
    )


def _bounds(rewards: Tensor, discounts: Tensor, discount: float) -> tuple[float, float]:
    """Return bounds of the return: the smallest or largest reward in every step forever, or once at a terminal."""
    going, ended = rewards[discounts > 0], rewards[discounts == 0]
    low = high = 0.0
    if len(going):
        low = min(0.0, float(going.min()) / (1.0 - discount))
        high = max(0.0, float(going.max()) / (1.0 - discount))
    if len(ended):
        low, high = min(low, float(ended.min())), max(high, float(ended.max()))
    return low, high


def _standard(values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation of each column; 1 for a nearly constant one, which is only shifted."""
    spread = values.std(0)
    return values.mean(0), torch.where(spread < 1e-4, torch.ones_like(spread), spread)


def refuse_memory(algo: Algo, path: Path) -> str | None:
    """Refuse a policy with memory; return a warning if it executes chunks, else None.

    Raises:
        CheckpointError: the policy has memory or goals, so a single state does not determine its action.
    """
    name = algo.global_config.algo_name
    if algo.goal_shapes:
        raise CheckpointError(
            f"{path}: policies with goals ({', '.join(algo.goal_shapes)}) cannot be evaluated by fitted Q evaluation: "
            "play episodes, by leaving out --fqe"
        )
    execution, state = algo.execution, algo.initial_state(1)
    remembered = set(state["policy"]) - {"chunk", "uncertainty"}
    if getattr(algo, "exploration", None) is not None:
        # The policy is evaluated without exploration, so its exploration noise is no memory.
        remembered -= {"noise"}
    if remembered:
        raise CheckpointError(
            f"{path}: this policy of {name} has a memory ({', '.join(sorted(remembered))}), so that "
            "a recorded state does not determine its action, and fitted Q evaluation cannot evaluate it: play "
            "episodes, by leaving out --fqe"
        )
    if execution is None or execution.execute == 1:
        return None
    return f"{path}: executes {execution.execute} actions of a chunk, but is evaluated as if it planned each step"


@torch.no_grad()
def answers_of(
    policy: RolloutPolicy,
    limits: tuple[Tensor, Tensor],
    dataset: SequenceDataset,
    recorded: RecordedTransitions,
    seed: int = 0,
) -> Answers:
    """Compute the actions of a policy in evaluation mode.

    Args:
        policy: policy without memory, see :func:`refuse_memory`.
        limits: lowest and highest action (A,), to which a robot would clip actions.
        dataset: dataset from :func:`open_data`.
        recorded: transitions from :func:`open_data`.
        seed: seed of stochastic policies.
    """
    algo = policy.algo
    generator = torch.Generator(algo.device).manual_seed(seed)

    def actions(raw: dict[str, Tensor]) -> Tensor:
        obs = algo.preprocess.prepare_obs(raw, algo.obs_shapes)
        newest = {key: value[:, -1] for key, value in obs.items()}
        taken = algo.preprocess.unnormalize_actions(_act(algo, obs, generator), newest).cpu()
        clipped = torch.minimum(torch.maximum(taken, limits[0]), limits[1])
        return (clipped - recorded.action_offset) / recorded.action_scale

    probe = dataset[list(range(min(64, len(dataset))))]["obs"]
    draws = 1 if torch.equal(actions(probe), actions(probe)) else SAMPLES

    def drawn(rows: list[int], group: str) -> Tensor:
        raw = dataset[rows][group]
        return torch.stack([actions(raw) for _ in range(draws)], 1)

    following = torch.cat([drawn(rows, "next_obs") for rows in _pieces(len(dataset))])
    return Answers(following, drawn(recorded.first.tolist(), "obs"))


def _act(algo: Algo, window: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Compute normalized actions (B, A) from the frames ``window`` {key: (B, frame_stack, ...)}."""
    newest = {key: value[:, -1] for key, value in window.items()}
    state = algo.initial_state(len(next(iter(newest.values()))))
    if algo.frame_stack > 1:
        # act() drops the oldest frame of the state and appends the newest: repeat the oldest one, drop the newest.
        frames = {key: torch.cat([x[:, :1], x[:, :-1]], 1) for key, x in window.items()}
        state = {**state, "frames": frames, "empty": torch.zeros_like(state["empty"])}
    return algo.act(newest, state, generator=generator).action


def _pieces(count: int) -> list[list[int]]:
    rows = list(range(count))
    return [rows[start : start + ROWS] for start in range(0, count, ROWS)]


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
        demo_return: mean discounted return of the demos.
        warning: limitation of the estimate, or None.
        behind: for each member, the best policy's value minus this policy's; empty without a ranking.
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
        """Mean difference to the best policy, minus and plus two standard deviations over the members."""
        return _interval(self.behind)


def fitted_q_evaluation(
    recorded: RecordedTransitions,
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
        discount: discount per step; None takes the checkpoint's, or 0.99 if it has none.
        filter_key: mask of the demos, or None for all.
        plan: settings.
        on_update: called after each update.

    Raises:
        UserError: the policy cannot be evaluated in this way, or the data lack rewards or observations.
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
    """Sort results by value, best first, each with its difference to the best."""
    order = sorted(results, key=lambda result: -result.value)
    best = order[0].members
    return [replace(result, behind=_difference(best, result.members)) for result in order]


def _loss(
    critic: CriticEnsemble,
    target: CriticEnsemble,
    recorded: RecordedTransitions,
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


def _critic(recorded: RecordedTransitions, members: int) -> CriticEnsemble:
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
