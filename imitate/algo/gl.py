"""Goal prediction: predict a subgoal, the observation a fixed number of steps later.

The planner of hierarchical policies: Mandlekar et al., "Learning to Generalize Across Long-Horizon Tasks from Human
Demonstrations", RSS 2020 (arXiv:2003.06085), and "IRIS", ICRA 2020 (arXiv:1911.05321). With g = the observation
``subgoal_horizon`` steps after s, or the last observation of the demo, K the number of its keys, and |g_k|^2 the mean
of squares:

    GL       sum_k |f(s)_k - g_k|^2                                                     -> GL._planner_loss
    GL_VAE   1/K sum_k |decode(z, s)_k - g_k|^2 + kl_weight KL(q(z|g, s) || p(z|s)), z ~ q
             with ``reconstruction_sum_across_elements`` the sum of all squares          -> GL_VAE._planner_loss

A planner alone does not act: see ``hbc`` and ``iris``. Departures from robomimic: if only the state ``subgoal_horizon``
steps ahead is needed, only this state is read from the file, so that ``train.seq_length`` may be 1; the decoder does
not see the observation if ``vae.decoder.is_conditioned`` is false.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.factory import register_algo_factory_func
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.sections import GLConfig
from imitate.errors import DatasetError, UserError
from imitate.functional.losses import masked_mean
from imitate.models.subgoals import SubgoalNetwork, SubgoalVAE
from imitate.system.text import counted


@register_algo_factory_func("gl", section=GLConfig)
def algo_config_to_class(algo_config: GLConfig) -> tuple[type[GL], dict[str, Any]]:
    """Return the class: GL for the mean subgoal, GL_VAE for a distribution."""
    return (GL_VAE if algo_config.vae.enabled else GL), {}


class GL(Algo[GLConfig]):
    """Planner that predicts the mean subgoal."""

    main_net = "goal_network"

    def _create_networks(self) -> None:
        net = SubgoalNetwork(
            self._create_encoder(), self.subgoal_shapes, self.config.ae.planner_layer_dims
        )
        self.nets = nn.ModuleDict({"goal_network": net})

    # ---- training ------------------------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Batch) -> Batch:
        """Prepare a batch; missing ``subgoals`` are taken from its window of ``next_obs``."""
        return super().process_batch_for_training(self.with_subgoals(batch))

    def with_subgoals(self, batch: Batch) -> Batch:
        """Return a raw batch with ``subgoals`` {key: (B, horizon, ...)}.

        Missing subgoals are taken from the window's ``next_obs``.

        Raises:
            DatasetError: the windows are shorter than the horizon.
        """
        if batch.get("subgoals"):
            return batch
        keys, horizon, first = (
            self.subgoal_shapes,
            self.config.subgoal_horizon,
            self.frame_stack - 1,
        )
        window = batch.get("next_obs") or {}
        if any(key not in window or window[key].shape[1] < first + horizon for key in keys):
            raise DatasetError(
                f"the batches have no subgoals, {counted(horizon, 'step')} ahead: make the dataset with "
                "SequenceDataset(..., subgoals=config.algo.data_needs(config).subgoals), or by build_datasets(config)"
            )
        return {**batch, "subgoals": {key: window[key][:, first : first + horizon] for key in keys}}

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the observation at the current step, and its subgoal."""
        frames, now = self.frame_stack, self.frame_stack - 1
        steps = slice(0, frames) if frames > 1 else 0
        weight = batch.get("weight")
        subgoals = {}
        for key, value in batch["subgoals"].items():
            # in a sequence of observations up to the subgoal, the subgoal is the last observation
            every = value.dim() > len(self.subgoal_shapes[key]) + 1
            subgoals[key] = value[:, -1] if every else value
        return {
            "obs": {key: value[:, steps] for key, value in batch["obs"].items()},
            "goal_obs": batch.get("goal_obs"),
            "subgoals": subgoals,
            "weight": None if weight is None else weight[:, now],
        }

    def _errors(self, predicted: Batch, wanted: Batch) -> dict[str, Tensor]:
        """Return the mean squared error (B,) of each key."""
        return {
            key: (value - wanted[key]).square().flatten(1).mean(-1)
            for key, value in predicted.items()
        }

    def _planner_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of network ``goal_network``."""
        predicted = self.active_nets["goal_network"](batch["obs"], batch["goal_obs"])
        errors = self._errors(predicted, batch["subgoals"])
        info = {f"{k}_Loss": masked_mean(v, batch["weight"]) for k, v in errors.items()}
        loss = torch.stack(list(info.values())).sum()
        return loss, {"Loss": loss, **info}

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._planner_loss(batch)

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Make one update, or with ``validate`` only compute the losses."""
        more = learn_auxiliaries(self, batch, not validate)
        with torch.set_grad_enabled(not validate):
            loss, info = self._planner_loss(batch)
        if not validate:
            info["Grad_Norms"] = self._gradient_step("goal_network", loss)
            follow_auxiliaries(self, batch)
        return {name: value.detach() for name, value in info.items()} | more

    # ---- planning ------------------------------------------------------------------------------------------------

    def sample_subgoals(
        self,
        obs: Batch,
        goal: Batch | None = None,
        number: int = 1,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Sample possible subgoals {key: (B, N, ...)}; a planner that predicts the mean returns it N times.

        Args:
            obs: prepared observations (B, ...), or (B, frame_stack, ...) if frames are stacked.
            goal: prepared goals, if the planner has goals.
            number: N, number of samples.
            generator: source of randomness.
        """
        mean = self.active_nets["goal_network"](obs, goal)
        return {
            key: value.unsqueeze(1).expand(-1, number, *value.shape[1:])
            for key, value in mean.items()
        }

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        raise UserError(
            "gl predicts subgoals and does not act: train hbc or iris, whose planner it is"
        )


class GL_VAE(GL):  # noqa: N801 - the name users know
    """Planner that predicts a distribution of subgoals."""

    @property
    def planner(self) -> SubgoalVAE:
        """The VAE that predicts subgoals."""
        return cast(SubgoalVAE, self.active_nets["goal_network"])

    def _create_networks(self) -> None:
        net = SubgoalVAE(self._create_encoder(), self.encoding.of("subgoal"), self.config.vae)
        self.nets = nn.ModuleDict({"goal_network": net})

    def _planner_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        out = self.planner(batch["subgoals"], batch["obs"], batch["goal_obs"])
        if self.config.vae.decoder.reconstruction_sum_across_elements:
            sums = [
                (value - batch["subgoals"][key]).square().flatten(1).sum(-1)
                for key, value in out.reconstruction.items()
            ]
            error = torch.stack(sums).sum(0)
        else:
            errors = self._errors(out.reconstruction, batch["subgoals"])
            error = torch.stack(list(errors.values())).mean(0)
        reconstruction = masked_mean(error, batch["weight"])
        kl = masked_mean(out.kl, batch["weight"])
        loss = reconstruction + self.config.vae.kl_weight * kl
        return loss, {"Loss": loss, "Reconstruction_Loss": reconstruction, "KL_Loss": kl}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Set the Gumbel-softmax temperature of the epoch, then make one update or only compute the losses."""
        prior = self.config.vae.prior
        if prior.use_categorical:
            self.planner.vae.set_gumbel_temperature(prior.temperature(epoch))
        return super().train_on_batch(batch, epoch, validate)

    def sample_subgoals(
        self,
        obs: Batch,
        goal: Batch | None = None,
        number: int = 1,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Sample subgoals {key: (B, N, ...)} from latents of the prior."""
        return self.planner.sample(obs, goal, number, generator)

    @property
    def latent_size(self) -> int:
        """Size Z of the latent."""
        return self.planner.vae.latent.size

    def sample_latents(
        self,
        obs: Batch,
        goal: Batch | None = None,
        number: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Sample latents (B, N, Z) from the prior: subgoals that are not decoded."""
        return self.planner.sample_prior(obs, goal, number, generator)

    @torch.no_grad()
    def latents_of(
        self, subgoals: Batch, obs: Batch, goal: Batch | None, prior_samples: int = 0
    ) -> Tensor:
        """Return latents (B, Z) that represent given subgoals: samples of the posterior.

        Args:
            subgoals: {key: (B, ...)}.
            obs: as in :meth:`sample_subgoals`.
            goal: goals, as in :meth:`sample_subgoals`.
            prior_samples: if positive, draw this number of latents from the prior and return the latent that is nearest
                to the posterior's.
        """
        latent: Tensor = self.planner(subgoals, obs, goal).latent
        if prior_samples == 0:
            return latent
        candidates = self.sample_latents(obs, goal, prior_samples)
        nearest = (candidates - latent.unsqueeze(1)).square().sum(-1).argmin(-1)
        return candidates[torch.arange(len(latent), device=latent.device), nearest]
