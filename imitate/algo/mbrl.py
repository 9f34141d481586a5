"""Model-based RL: learn a model of the environment, and execute the first action of the best plan in it.

Chua, Calandra, McAllister, Levine, "Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics
Models" (PETS), NeurIPS 2018 (arXiv:1805.12114). With the model in the slot ``dynamics``
(:mod:`imitate.algo.slots.ensemble`), the search in the slot ``planner``
(:mod:`imitate.algo.slots.planner`), and the discount g:

    model   predicts s' and r from (s, a), learned from replayed or recorded transitions           -> MBRL._loss
    score   E[ sum_t g^t r(s_t, a_t) ] over H steps of a plan, nothing after an end            -> Dynamics.returns
    act     first action of the planner's plan, whose search starts from the last plan             -> MBRL._act

Departures: the reward is learned unless ``reward`` names its function; the model learns ``train.online.update_ratio``
batches per environment step instead of from scratch after each episode; returns are discounted. There is no policy and
no value function after the end of the plan, so the plan must be long enough to include its consequences.
"""

from functools import cached_property, partial
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState, PolicyState
from imitate.algo.base.rows import with_transitions
from imitate.algo.slots.dynamics import DYNAMICS, Dynamics, DynamicsConfig
from imitate.algo.slots.dynamics import built as dynamics_of
from imitate.algo.slots.ensemble import EnsembleConfig
from imitate.algo.slots.outcomes import Outcomes, OutcomesConfig, outcomes_of
from imitate.algo.slots.planner import PLANNERS, CEMConfig, Planner, PlannerConfig, finite
from imitate.algo.slots.planner import built as planner_of
from imitate.config import BaseConfig, DataNeeds, Transitions


class MBRLConfig(OutcomesConfig):
    """Options of algorithm ``mbrl``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    discount: float = Field(0.99, gt=0, le=1, description="discount factor per step")
    dynamics: Annotated[DynamicsConfig, DYNAMICS] = Field(
        EnsembleConfig(), description="learned model of the environment"
    )
    planner: Annotated[PlannerConfig, PLANNERS] = Field(
        CEMConfig(), description="planner, which searches for actions"
    )
    particles: int = Field(
        1,
        ge=1,
        description="number of trajectories that each member of the model simulates per plan; more than 1 is useful "
        "if predictions are sampled",
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request transitions of one step."""
        return DataNeeds(transitions=Transitions(discount=self.discount), observed_steps=1)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = self.dynamics.problems(config) + self.problems_of_outcomes(self.dynamics, config)
        if config.train.hdf5_load_next_obs is False:
            problems.append(
                f"train.hdf5_load_next_obs is false, but {config.algo_name} learns from next observations: leave it out"
            )
        return problems


@register("mbrl", MBRLConfig)
class MBRL(Algo[MBRLConfig]):
    """Algorithm that acts by planning in a learned model."""

    main_net = "dynamics"
    random_needs_act = False

    def _create_networks(self) -> None:
        model = dynamics_of(self.config.dynamics, self.obs_shapes, self.ac_dim)
        self.nets = nn.ModuleDict({"dynamics": model})

    @property
    def dynamics(self) -> Dynamics:
        """The learned model of the environment."""
        return cast(Dynamics, self.nets["dynamics"])

    @cached_property
    def planner(self) -> Planner:
        """The planner, which searches for actions in the learned model."""
        return planner_of(self.config.planner, self.ac_dim)

    @cached_property
    def outcomes(self) -> Outcomes | None:
        """Correction of the learned model's rewards and episode ends, or None if the section requests none."""
        return outcomes_of(self.config, self.dynamics, lambda: self.preprocess)

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the transition at the current step of each window."""
        batch = with_transitions(batch, self, 0)
        weight = batch.get("weight")
        return {
            "obs": {key: value[:, 0] for key, value in batch["obs"].items()},
            "next_obs": {key: value[:, 0] for key, value in batch["next_obs"].items()},
            "actions": batch["actions"][:, 0],
            "rewards": batch["n_step_rewards"],
            "discounts": batch["discounts"],
            "weight": None if weight is None else weight[:, 0],
            "index": batch["index"],
        }

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the model's loss."""
        loss, info = self.dynamics.loss(batch)
        return loss, {**info, "Loss": loss}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update the model once; with ``validate`` only compute its loss."""
        if validate:
            return super().train_on_batch(batch, epoch, validate=True)
        self.dynamics.follow(batch)
        more = learn_auxiliaries(self, batch)
        loss, info = self._loss(batch)
        info["Dynamics_Grad_Norms"] = self._gradient_step("dynamics", loss)
        follow_auxiliaries(self, batch)
        return {name: value.detach() for name, value in info.items()} | more

    # ---- test time -----------------------------------------------------------------------------------------------

    def _score(self, states: Tensor, generator: torch.Generator | None, plans: Tensor) -> Tensor:
        """Return the predicted returns (B, P) of plans (B, P, H, A) from states (B, D)."""
        config = self.config
        returns = self.dynamics.returns(
            states, plans, config.discount, config.particles, generator, self.outcomes
        )
        return finite(returns)

    @torch.no_grad()
    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        score = partial(self._score, self.dynamics.state_of(obs), generator)
        action, plan = self.planner.plan(score, state["plan"], explore=explore, generator=generator)
        return PolicyStep(action, {"plan": plan}, {})

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        return {"plan": self.planner.initial_plan(batch_size, self.device)}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Return the state without the last plan."""
        batch_size = len(next(iter(state["policy"]["plan"].values())))
        return {**state, "policy": self._initial_policy_state(batch_size)}
