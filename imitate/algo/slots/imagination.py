"""Slot of an algorithm with critics: transitions imagined by a learned model are added to each batch.

Janner, Fu, Zhang, Levine, "When to Trust Your Model: Model-Based Policy Optimization" (MBPO), NeurIPS 2019
(arXiv:1906.08253). From replayed states, the policy acts up to ``horizon`` steps in the model; each step is predicted
by a randomly drawn member of the ensemble. The section ``dynamics`` defines the model, and ``imagination`` the other
settings.

Departures: transitions are imagined when a batch is sampled and never stored, so that they always come from the current
policy and model; one random step of each short trajectory is used; the model is trained on each batch instead of from
scratch every 250 steps, and its transitions are used after ``start_updates`` updates.
"""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Batch
from imitate.algo.slots.dynamics import Correct, Dynamics
from imitate.config import Section

Act = Callable[[dict[str, Tensor]], Tensor]
"""The policy as in rollouts: a function of observations {key: (N, ...)} that returns actions (N, A)."""


class ImaginationConfig(Section):
    """Settings of imagined transitions in batches."""

    share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="fraction of imagined transitions in each batch of the losses; 0.95 in the paper",
    )
    horizon: int = Field(
        1,
        ge=1,
        description="largest number of steps for which the policy acts in the model from a replayed state",
    )
    start_updates: int = Field(
        1000,
        ge=0,
        description="number of updates of the model before imagined transitions are used",
    )

    def problems(self, config: Any) -> list[str]:
        """Return messages for settings that cannot be combined with imagined transitions."""
        section, problems = config.algo, []
        if section.n_step > 1:
            problems.append(
                f"algo.n_step is {section.n_step}, but the transitions of algo.dynamics have one step: set it to 1"
            )
        if section.rnn.enabled:
            problems.append(
                "algo.dynamics sees observations, but with algo.rnn.enabled batches hold recurrent features: disable "
                "one of them"
            )
        if getattr(section, "reward_source", None) is not None:
            problems.append(
                f"algo.dynamics predicts the environment's rewards, which {config.algo_name} does not use: set it to "
                "null"
            )
        return problems


@torch.no_grad()
def imagined(
    batch: Batch,
    model: Dynamics,
    act: Act,
    config: ImaginationConfig,
    discount: float,
    correct: Correct | None = None,
) -> Batch:
    """Imagine transitions that begin within ``config.horizon`` steps of a batch's states.

    Args:
        batch: prepared transitions of one step.
        model: model that predicts the transitions.
        act: function that draws the policy's actions.
        config: number and length of the imagined trajectories.
        discount: discount factor per step; after a predicted end it is 0.
        correct: function that corrects the model's predictions, or None.

    Returns:
        ``obs``, ``next_obs`` {key: (N, ...)}, ``actions`` (N, A), ``rewards``, ``discounts`` (N,).
    """
    size = len(batch["actions"])
    count = round(size * config.share / (1.0 - config.share))
    rows = torch.arange(count, device=batch["actions"].device)
    states = model.state_of(batch["obs"])[torch.randint(size, (count,), device=rows.device)]
    steps = []
    for _ in range(config.horizon):
        actions = act(model.obs_of(states))
        outcome = model.imagine(states, actions, correct=correct)
        ends = torch.rand_like(outcome.ends) < outcome.ends
        steps.append((states, actions, outcome.rewards, outcome.states, ends))
        states = outcome.states
    states, actions, rewards, following, ends = (torch.stack(x) for x in zip(*steps, strict=True))
    # index of the last valid step of each trajectory: the first predicted end, or the end of the horizon
    over = torch.cat([ends[:-1], torch.ones_like(ends[:1])]).int().argmax(0)
    at = torch.minimum(torch.randint(config.horizon, (count,), device=rows.device), over)
    return {
        "obs": model.obs_of(states[at, rows]),
        "next_obs": model.obs_of(following[at, rows]),
        "actions": actions[at, rows],
        "rewards": rewards[at, rows],
        "discounts": discount * (~ends[at, rows]).to(rewards),
    }


def with_imagined(batch: Batch, more: Batch) -> Batch:
    """Concatenate the batch's transitions and the imagined ones, each with weight 1."""
    joined = dict(batch)
    for key, value in more.items():
        joined[key] = (
            {name: torch.cat([x, value[name]]) for name, x in batch[key].items()}
            if isinstance(value, dict)
            else torch.cat([batch[key], value])
        )
    if batch["weight"] is not None:
        joined["weight"] = torch.cat([batch["weight"], torch.ones_like(more["rewards"])])
    return joined
