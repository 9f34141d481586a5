"""Goal-conditioned behavior cloning (GCBC): imitate a demo's actions, given a later state of the same demo as the goal.

Lynch et al., "Learning Latent Plans from Play", CoRL 2019 (arXiv:1903.01973); Ghosh et al., "Learning to Reach Goals
via Iterated Supervised Learning", ICLR 2021 (arXiv:1912.06088). Networks, goals and settings are those of OGBench
(Park et al., ICLR 2025, arXiv:2410.20092). With g uniform over the states after s in its demo:

    L_pi = -E[ log pi(a | s, g) ], pi a Gaussian of unit variance                              -> GCBC._actor_loss

Departure: images of state and goal have separate encoders, whose features are joined. robomimic has no GCBC.
"""

from torch import Tensor, nn

from imitate.algo.base.actor_critic import Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.goal_conditioned import GoalConditioned, GoalConditionedConfig
from imitate.config.optimizer import Networks, networks
from imitate.models.goal_networks import GoalActor


class GCBCConfig(GoalConditionedConfig):
    """Options of algorithm ``gcbc``, under ``algo``."""

    optim_params: Networks = networks("GCBCOptimParams", actor=3e-4)


@register("gcbc", GCBCConfig)
class GCBC(GoalConditioned[GCBCConfig]):
    """Behavior cloning of actions, conditioned on a later state of the same demo as the goal."""

    def _create_networks(self) -> None:
        actor = GoalActor(self._create_encoder(), self.config.actor.layer_dims, self.ac_dim)
        self.nets = nn.ModuleDict({"actor": actor})

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        mean = self.actor(batch["obs"], batch["goal_obs"])
        loss, info = self._imitation_loss(mean, batch["actions"], batch["weight"], None)
        return loss, {"Actor_Loss": loss, **info}

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the actor."""
        update.step("actor", self._actor_loss(batch))
