"""IRIS: choose the subgoal with the highest value among those that are possible in the data, and act towards it.

Mandlekar et al., "IRIS: Implicit Reinforcement without Interaction at Scale for Learning Control from Offline Robot
Manipulation Data", ICRA 2020 (arXiv:1911.05321). With g = the observation ``subgoal_horizon`` steps after s:

    planner   p(g | s), by gl with a VAE                                                  -> gl.py
    value     V(s) = max_i Q(s, a_i), a_i ~ the data's actions in s, by bcq               -> bcq.py
    actor     p(a | s, g), by bc                                                          -> hierarchy.py
    acting    every ``subgoal_update_interval`` steps the best of ``num_samples`` g_i ~ planner(s) by V(g_i), with the
              online critics, not the targets; a ~ actor(s, g)                            -> IRIS._plan

Demonstrations may be suboptimal: they show which states can be reached, and rewards define their value.

Departures from robomimic: the actor sees the subgoal (robomimic builds it without goals); the mode ``cascade``, in
which the actor learns with the subgoals of the highest value, works (in robomimic it fails); random subgoals are as in
hbc.
"""

from dataclasses import replace
from typing import Protocol, cast

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.algo import Algo, Batch
from imitate.algo.base.factory import register
from imitate.algo.base.hierarchy import PLANNER_OBSERVATIONS, Hierarchy, HierarchyConfig
from imitate.algo.base.rl_sections import BCQConfig
from imitate.algo.base.sections import GLConfig
from imitate.config import AlgoSection, BaseConfig, DataNeeds, ObservationConfig, Section
from imitate.config.observation import PartedObservations
from imitate.functional.sampling import pick_class


class ValuePlannerObservations(PartedObservations):
    """Observations of planner and value."""

    planner: ObservationConfig = Field(
        PLANNER_OBSERVATIONS,
        description="Observations of the planner. Its modality group subgoal lists the observations that it predicts.",
    )
    value: ObservationConfig = Field(
        ObservationConfig(),
        description="Observations of the value network, all of which the planner must predict as parts of a subgoal.",
    )


class IRISObservations(PartedObservations):
    """Observations of planner, value network and actor in ``iris``, under ``observation``."""

    value_planner: ValuePlannerObservations = Field(
        ValuePlannerObservations(), description="Observations of planner and value."
    )
    actor: ObservationConfig = Field(ObservationConfig(), description="Observations of the actor.")


class ValuePlannerConfig(Section):
    """Planner that samples subgoals, and the value network that chooses the best of them."""

    planner: GLConfig = Field(GLConfig())
    value: BCQConfig = Field(BCQConfig())
    num_samples: int = Field(
        100, ge=1, description="number of sampled subgoals, of which the best is chosen"
    )


class IRISConfig(HierarchyConfig):
    """Options of algorithm ``iris``, under ``algo``."""

    observations = IRISObservations

    value_planner: ValuePlannerConfig = Field(ValuePlannerConfig())

    @property
    def goal_planner(self) -> GLConfig:
        """Options of the planner, which predicts subgoals."""
        return self.value_planner.planner

    @property
    def parts(self) -> dict[str, AlgoSection]:
        """Sections of planner, value and actor by their dotted keys."""
        path, planner = "algo.value_planner", self.value_planner
        parts = {f"{path}.planner": planner.planner, f"{path}.value": planner.value}
        return {**parts, "algo.actor": self.actor}

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request the data of a hierarchy, and transitions for the value network."""
        of_value = self.value_planner.value.data_needs(config)
        return replace(super().data_needs(config), transitions=of_value.transitions)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        path = "algo.value_planner"
        problems = super().conflicts(config)
        problems += [
            text.replace("algo.", f"{path}.value.")
            for text in self.value_planner.value.conflicts(config)
        ]
        if config.train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but the value of a subgoal is computed "
                "from one frame: set it to 1"
            )
        if self.latent_subgoal.enabled:
            problems.append(
                "algo.latent_subgoal.enabled: the value network evaluates states, not latents: set it to false"
            )
        if not self.value_planner.planner.vae.enabled:
            problems.append(
                f"{path}.planner.vae.enabled is false, so that there is only one subgoal to choose from: set it to true"
            )
        known = config.observation.modality_of("subgoal")
        for key in config.observation["value_planner"]["value"].modality_of("obs"):
            if key not in known:
                problems.append(
                    f"observation.value_planner.value.modalities.obs: '{key}' is not part of the subgoal, so that the "
                    "value of a subgoal cannot be computed: take it out, or let the planner predict it"
                )
        return problems


class StateValue(Protocol):
    """Interface of the part ``value``: an algorithm that estimates values of states, such as ``bcq``."""

    obs_shapes: dict[str, tuple[int, ...]]
    goal_shapes: dict[str, tuple[int, ...]]

    def state_value(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None
    ) -> Tensor:
        """Return values (B,) of prepared observations (B, ...)."""


@register("iris", IRISConfig)
class IRIS(Hierarchy[IRISConfig]):
    """Cloned planner and actor, and a value that chooses among subgoals."""

    @property
    def value(self) -> StateValue:
        """The value network's algorithm, which estimates values of states."""
        return cast(StateValue, self.parts["value"])

    def _create_parts(self) -> dict[str, Algo]:
        config, observed = self.config.value_planner, self.obs_config.value_planner
        return {
            "planner": self._part("gl", config.planner, observed.planner),
            "value": self._part("bcq", config.value, observed.value),
        }

    def _plan(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Batch:
        number = self.config.value_planner.num_samples
        subgoals = self.planner.sample_subgoals(obs, goal, number, generator)
        best = self._values_of(subgoals, goal, number, generator).argmax(-1)
        return {
            key: pick_class(value.flatten(2), best).reshape(len(best), *value.shape[2:])
            for key, value in subgoals.items()
        }

    def _values_of(
        self,
        subgoals: Batch,
        goal: Batch | None,
        number: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return values (B, N) of subgoals {key: (B, N, ...)}."""
        states = {key: subgoals[key].flatten(0, 1) for key in self.value.obs_shapes}
        wanted = None
        if self.value.goal_shapes and goal is not None:
            wanted = {key: goal[key].repeat_interleave(number, 0) for key in self.value.goal_shapes}
        return self.value.state_value(states, wanted, generator).view(-1, number)
