"""Hierarchical behavioral cloning: clone the state that is reached some steps later, and the actions that reach it.

Mandlekar et al., "Learning to Generalize Across Long-Horizon Tasks from Human Demonstrations", RSS 2020
(arXiv:2003.06085), in the form of "What Matters in Learning from Offline Human Demonstrations for Robot Manipulation",
CoRL 2021 (arXiv:2108.03298). With g = the observation ``subgoal_horizon`` steps after s:

    planner   p(g | s), by gl                                                          -> slot planner
    actor     p(a | s, g), by bc, g from the data (``separate``) or the planner (``cascade``)
    acting    every ``subgoal_update_interval`` steps g ~ planner(s); a ~ actor(s, g)   -> hierarchy.py
    latent    the actor's goal is the planner's z: in training from the posterior, or the nearest one of N samples of
              the prior; in acting from the prior                                      -> HBC._goals_in_data, _plan

Departures from robomimic: the actor sees the subgoal (robomimic builds it without goals, as plain BC);
``actor_use_random_subgoals`` draws subgoals from 1 to ``subgoal_horizon`` steps ahead, as robomimic's documentation
says, not up to ``train.seq_length``, and can be combined with latent subgoals; the actor may have any of bc's
distributions.
"""

import torch
from pydantic import Field

from imitate.algo.base.algo import Algo, Batch
from imitate.algo.base.factory import register
from imitate.algo.base.hierarchy import LATENT_KEY, PLANNER_OBSERVATIONS, Hierarchy, HierarchyConfig
from imitate.algo.base.sections import GLConfig
from imitate.config import ObservationConfig
from imitate.config.observation import PartedObservations


class HBCObservations(PartedObservations):
    """Observations of planner and actor in ``hbc``, under ``observation``."""

    planner: ObservationConfig = Field(
        PLANNER_OBSERVATIONS,
        description="Observations of the planner. Its modality group subgoal lists the observations that it predicts.",
    )
    actor: ObservationConfig = Field(ObservationConfig(), description="Observations of the actor.")


class HBCConfig(HierarchyConfig):
    """Options of algorithm ``hbc``, under ``algo``."""

    observations = HBCObservations

    planner: GLConfig = Field(GLConfig())

    @property
    def goal_planner(self) -> GLConfig:
        """Options of the planner, which predicts subgoals."""
        return self.planner


@register("hbc", HBCConfig)
class HBC(Hierarchy[HBCConfig]):
    """Planner and actor, both trained by behavioral cloning."""

    def _create_parts(self) -> dict[str, Algo]:
        return {"planner": self._part("gl", self.config.planner, self.obs_config.planner)}

    def _goals_in_data(self, planned: Batch, subgoals: Batch) -> Batch:
        latent = self.config.latent_subgoal
        if not latent.enabled:
            return subgoals
        correction = latent.prior_correction
        samples = correction.num_samples if correction.enabled else 0
        latents = self.planner.latents_of(subgoals, planned["obs"], planned["goal_obs"], samples)
        return {LATENT_KEY: latents}

    def _plan(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Batch:
        if self.config.latent_subgoal.enabled:
            return {LATENT_KEY: self.planner.sample_latents(obs, goal, 1, generator)[:, 0]}
        sampled = self.planner.sample_subgoals(obs, goal, 1, generator)
        return {key: value[:, 0] for key, value in sampled.items()}
