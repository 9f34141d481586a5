"""TAAC: at each step the policy continues its plan of actions, or replaces it by a new plan.

Yu, Xu, Zhang, "TAAC: Temporally Abstract Actor-Critic for Continuous Control", NeurIPS 2021 (arXiv:2104.06521). A plan
p is an action a, with ``linear`` also its change v, with ``quadratic`` also the change u of v; actions are in [-1, 1]:

    continued   u stays, v <- clip(v + 2 u), a <- clip(a + 2 v)                                -> continued
    new         a ~ pi(. | s, p), v = (a - a_p) / 2, u = v / 2                                 -> renewed
    choice      P(new) = softmax([min_e Q_e(s, continued), min_e Q_e(s, new)] / alpha_b)       -> TAAC.choice
    target      y_t = r_t + g V(s_{t+1}) if a plan is new at t + 1, in the data or by the current policy,
                else r_t + g y_{t+1}                                                           -> compared_returns
                V(s) = sum over the choices of their probability times min_e Q'_e              -> TAAC.td_targets
    critic      mean over steps, sum over e, of (Q_e(s_t, p_t) - y_t)^2                        -> TAAC.critic_loss
    actor       -P(new) min_e Q_e(s, new) + alpha_a log pi(a | s, p), no gradient of P(new)    -> TAAC.actor_loss
    alpha       each rises while the entropy of its part is below the target                   -> TAAC.temperature_loss

So a target spans the steps for which the data and the current policy keep the same plan. Batches are windows of
``train.seq_length`` steps with the plan before the first step; later plans follow from the actions that were taken.

Departures: a stored flag for new plans is not needed, because a plan is continued where the action is the continued
plan's; the target entropy of the choice is half of log 2 (``temperature.choice_entropy``). A window of a file begins
with the plan of an episode's start, which is zero.
"""

import math
from dataclasses import replace
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.entropy import EntropyWeight, SoftActorCriticConfig, sampled_actions
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.slots.memory import STORED
from imitate.config import BaseConfig, DataNeeds, Sequences
from imitate.errors import DatasetError
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import draw_class
from imitate.models.actor import GroupEncoder, Obs

PLAN = "current_plan"
"""Key of the current plan in the actor's observations (B, K A), in its state (B, K, A) and in stored steps."""
SAME = 1e-4
"""A plan counts as continued if the normalized action differs from the plan's by at most this rounding error."""
SIZES = {"action": 1, "linear": 2, "quadratic": 3}
"""K, the number of vectors of a plan."""


class TAACConfig(SoftActorCriticConfig):
    """Options of algorithm ``taac``, under ``algo``."""

    tree_defaults = {
        "train": {
            "batch_size": 64,
            "seq_length": 8,
            "online": {"enabled": True, "warmup_policy": "policy"},
        }
    }

    form: Literal["action", "linear", "quadratic"] = Field(
        "action",
        description="quantity that is constant during a plan: the action, its change, or the change of its change",
    )
    max_repeat: int | None = Field(
        None,
        ge=1,
        description="largest number of steps for which a rollout continues a plan; null: any number of steps",
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request sequences from a replay buffer, or windows with all their observations from a file."""
        needs = super().data_needs(config)
        if not config.train.online.enabled:
            return replace(needs, observed_steps=None)
        return replace(needs, sequences=Sequences(config.train.seq_length, 0))

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        train = config.train
        found = {
            f"train.seq_length is {train.seq_length}, but a plan cannot continue within one step: set it to 8": (
                train.seq_length < 2
            ),
            f"train.frame_stack is {train.frame_stack}, but windows have single observations: set it to 1": (
                train.frame_stack > 1
            ),
            f"algo.n_step is {self.n_step}, but the policy decides how long targets are: set it to 1": (
                self.n_step > 1
            ),
            "algo.infinite_horizon is true, which taac does not support: set it to false": self.infinite_horizon,
            "algo.rewards: taac learns from a single reward: leave it out": bool(self.rewards),
            "algo.auxiliary learns from single steps, taac from windows: leave it out": bool(
                self.auxiliary
            ),
            "train.online.hindsight.enabled is true, but all steps of a window need one goal: set it to false": (
                train.online.hindsight.enabled
            ),
            "algo.networks.actor would not see the plan: name an encoder instead": (
                self.networks.get("actor", None) is not None
            ),
        }
        return super().conflicts(config) + [words for words, holds in found.items() if holds]


# ---- plans -------------------------------------------------------------------------------------------------------


def continued(plan: Tensor) -> Tensor:
    """Return plans (*B, K, A), whose rows are an action and its changes, as they continue at the next step."""
    rows = list(plan.unbind(-2))
    for row in range(len(rows) - 2, -1, -1):
        rows[row] = (rows[row] + 2.0 * rows[row + 1]).clamp(-1.0, 1.0)
    return torch.stack(rows, dim=-2)


def renewed(actions: Tensor, plan: Tensor) -> Tensor:
    """Return new plans (*B, K, A) that begin with ``actions`` (*B, A), given the previous plans (*B, K, A)."""
    change = actions - plan[..., 0, :]
    rows = [change / 2.0**row for row in range(1, plan.shape[-2])]
    return torch.stack([actions, *rows], dim=-2)


def plans_of(plan: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the plans (B, L, K, A) of actions (B, L, A) after a plan (B, K, A), and where (B, L) a plan is new."""
    plans, new = [], []
    for action in actions.unbind(1):
        kept = continued(plan)
        is_new = (action - kept[:, 0]).abs().amax(-1) > SAME
        plan = torch.where(is_new.view(-1, 1, 1), renewed(action, plan), kept)
        plans.append(plan)
        new.append(is_new)
    return torch.stack(plans, 1), torch.stack(new, 1)


def compared_returns(rewards: Tensor, discounts: Tensor, values: Tensor, stops: Tensor) -> Tensor:
    """Return the TD targets of windows of L steps, each of which sums rewards up to the first stop.

    Args:
        rewards: (B, L).
        discounts: (B, L) 0 after an end.
        values: (B, L) of the states after the steps.
        stops: (B, L) true where the target takes the value of the state after the step; the last always does.

    Returns:
        (B, L).
    """
    after, targets = values[:, -1], []
    for step in range(rewards.shape[1] - 1, -1, -1):
        after = torch.where(stops[:, step], values[:, step], after)
        after = rewards[:, step] + discounts[:, step] * after
        targets.append(after)
    return torch.stack(targets[::-1], dim=1)


class PlanEncoder(GroupEncoder):
    """Encoder of observation and goal that appends the plan, ``size`` numbers."""

    def __init__(self, encoder: GroupEncoder, size: int) -> None:
        super().__init__(encoder.obs, encoder.goal, encoder.frames)
        self.output_dim += size

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Encode observations (B, ...), among them the plan, to (B, D)."""
        return torch.cat([super().forward(obs, goal), obs[PLAN]], dim=-1)


# ---- the algorithm -----------------------------------------------------------------------------------------------


@register("taac", TAACConfig)
class TAAC(ActorCritic[TAACConfig]):
    """Soft actor-critic that continues a plan or replaces it."""

    gives_errors = False

    def _create_networks(self) -> None:
        config, size = self.config, SIZES[self.config.form]
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic, num_actions=size),
            }
        )
        self._add_targets()
        choice = config.temperature.choice_entropy * math.log(2.0)
        wanted = torch.tensor([config.target_entropy(self.ac_dim), choice], device=self.device)
        self.entropy = EntropyWeight(config.temperature, wanted)
        self.acting_nets = ("critic",)
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net
            self.acting_nets = ("critic", "temperature")

    def _create_encoder(self, frames: int | None = None) -> GroupEncoder:
        return PlanEncoder(super()._create_encoder(frames), SIZES[self.config.form] * self.ac_dim)

    def _add_slots(self) -> None:
        super()._add_slots()
        self.random_needs_act = True

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of the plan before a step, which is stored with the step."""
        return {PLAN: (SIZES[self.config.form], self.ac_dim)}

    # ---- windows -------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select windows of L steps with L + 1 observations, and flatten their states to B (L + 1) rows."""
        parts = self._replayed(batch) if "ahead" in batch else self._recorded(batch)
        plans, new = plans_of(parts["before"], parts["actions"])
        states = {
            key: value[:, : plans.shape[1] + 1].flatten(0, 1) for key, value in batch["obs"].items()
        }
        goal, rows = batch.get("goal_obs") or None, plans.shape[1] + 1
        weight = batch.get("weight")
        steps = parts["mask"].float()
        return {
            "obs": states,
            "goal_obs": goal
            and {key: value.repeat_interleave(rows, 0) for key, value in goal.items()},
            "before": torch.cat([parts["before"].unsqueeze(1), plans], 1).flatten(0, 1),
            "plans": plans,
            "new": new,
            "weight": steps if weight is None else steps * weight[:, : rows - 1],
            **{name: parts[name] for name in ("rewards", "discounts", "mask")},
        }

    @staticmethod
    def _replayed(batch: Batch) -> Batch:
        """Return the steps of a replay buffer's sequences."""
        names = ("actions", "discounts", "mask")
        return {
            "before": batch[STORED + PLAN],
            "rewards": batch["n_step_rewards"],
            **{name: batch[name] for name in names},
        }

    def _recorded(self, batch: Batch) -> Batch:
        """Return the steps of windows of a file whose following state is known, or that end their episode."""
        ends = batch.get("terminals", batch.get("dones"))
        if ends is None or "rewards" not in batch:
            raise DatasetError(
                "taac learns from windows with rewards and ends, which the batches lack: make the dataset by "
                "build_datasets(config), or set train.online.enabled to true"
            )
        actions, ends = batch["actions"][:, :-1], ends[:, :-1]
        real = batch.get("pad_mask", torch.ones_like(batch["rewards"])) > 0
        return {
            "before": actions.new_zeros(len(actions), *self.state_shapes[PLAN]),
            "actions": actions,
            "rewards": batch["rewards"][:, :-1],
            "discounts": self.config.discount * (1.0 - ends),
            "mask": real[:, :-1] & (real[:, 1:] | (ends > 0)),
        }

    # ---- values --------------------------------------------------------------------------------------------------

    def candidates(self, obs: Batch, goal: Batch | None, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Return the continued and a new plan (B, 2, K A), and the log-density (B,) of the new action."""
        seen = {**obs, PLAN: plan.flatten(1)}
        actions, log_prob = sampled_actions(self.actor, seen, goal)
        both = torch.stack([continued(plan), renewed(actions, plan)], dim=1)
        return both.flatten(2), log_prob

    def choice(self, values: Tensor) -> Tensor:
        """Return the log-probabilities (B, 2) of the continued and the new plan from their values (B, 2)."""
        return (values / self.entropy.value[1].clamp(min=1e-10)).log_softmax(-1)

    @torch.no_grad()
    def td_targets(self, batch: Batch) -> Tensor:
        """Return the targets (B, L) of the steps of windows."""
        obs, goal = batch["obs"], batch["goal_obs"]
        plans, _ = self.candidates(obs, goal, batch["before"])
        logits = self.choice(self._ensemble_value(self._critic("critic")(obs, plans, goal)))
        later = self._ensemble_value(self._critic("critic_target")(obs, plans, goal))
        values = (logits.exp() * later).sum(-1)
        shape = (-1, batch["rewards"].shape[1] + 1)
        after, changes = (x.reshape(shape)[:, 1:] for x in (values, draw_class(logits, None) > 0))
        # A return stops where the data end or a plan is new at the next state, in the data or by the policy's draw
        # there. The first step always counts, and the last step of the window always stops.
        known = batch["mask"][:, 1:] & ~batch["new"][:, 1:] & ~changes[:, :-1]
        stops = torch.cat([~known, torch.ones_like(known[:, :1])], dim=1)
        return compared_returns(batch["rewards"], batch["discounts"], after, stops)

    # ---- losses --------------------------------------------------------------------------------------------------

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the TD loss of all steps of the windows, and scalars to log."""
        target, steps = self.td_targets(batch), batch["rewards"].shape[1]
        obs, goal = self.at_steps(batch)
        values = self._critic("critic")(obs, batch["plans"].flatten(2).flatten(0, 1), goal)
        loss = self._td_loss(values, target.flatten(), batch["weight"].flatten())
        return loss, {
            "Critic_Loss": loss,
            "Q": masked_mean(values.mean(0).reshape(-1, steps), batch["mask"]),
            "Q_Targets": masked_mean(target, batch["mask"]),
            "New_Plans": masked_mean(batch["new"].float(), batch["mask"]),
        }

    def at_steps(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """Return the observations and goals of the B L steps, without the states after the last steps."""
        rows = batch["rewards"].shape[1] + 1

        def cut(values: Batch | None) -> Batch | None:
            return values and {
                key: x.reshape(-1, rows, *x.shape[1:])[:, :-1].flatten(0, 1)
                for key, x in values.items()
            }

        return cast(Batch, cut(batch["obs"])), cut(batch["goal_obs"])

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of the policy of new plans, and scalars to log."""
        obs, goal = self.at_steps(batch)
        before = batch["before"].reshape(
            -1, batch["rewards"].shape[1] + 1, *batch["before"].shape[1:]
        )
        plans, log_prob = self.candidates(obs, goal, before[:, :-1].flatten(0, 1))
        values = self._ensemble_value(self._critic("critic")(obs, plans, goal))
        logits, weight = self.choice(values.detach()), batch["weight"].flatten()
        shares = logits.exp()
        alpha, of_choice = self.entropy.value
        loss = masked_mean(alpha * log_prob - shares[:, 1] * values[:, 1], weight)
        return loss, {
            "Actor_Loss": loss,
            "Entropy": masked_mean(-log_prob.detach(), weight),
            "Choice_Entropy": masked_mean(-(shares * logits).sum(-1), weight),
            "Temperature": alpha,
            "Choice_Temperature": of_choice,
            "Renewal": masked_mean(shares[:, 1], weight),
        }

    def temperature_loss(self, info: Info) -> Tensor:
        """Return the loss of network ``temperature``, from the entropies in the info of the actor's loss."""
        return self.entropy.loss(torch.stack([info["Entropy"], info["Choice_Entropy"]]))

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, actor, temperatures and targets, in this order."""
        update.step("critic", self.critic_loss(batch))
        update.step("actor", self.actor_loss(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self.temperature_loss(update.info))
        if update.learns("critic"):
            self._follow()

    def _validation_info(self, batch: Batch) -> Info:
        """Return no measurements, because the policy's action depends on a plan."""
        return {}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        plan = torch.zeros(batch_size, *self.state_shapes[PLAN], device=self.device)
        steps = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return {PLAN: plan, "steps": steps}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        before = state[PLAN]
        action = self._decide({**obs, PLAN: before.flatten(1)}, goal, explore, generator)
        kept, new = continued(before), renewed(action, before)
        plans = torch.stack([kept, new], dim=1).flatten(2)
        values = self._ensemble_value(self.active_nets["critic"](obs, plans, goal))
        takes_new = (
            draw_class(self.choice(values), generator) > 0 if explore else values.argmax(-1) > 0
        )
        if self.config.max_repeat is not None:
            takes_new |= state["steps"] >= self.config.max_repeat
        plan = torch.where(takes_new.view(-1, 1, 1), new, kept)
        steps = torch.where(takes_new, 1, state["steps"] + 1)
        extras = {STORED + PLAN: before} if explore else {}
        return PolicyStep(plan[:, 0], {**state, PLAN: plan, "steps": steps}, extras)
