"""Behavior cloning by an ensemble, whose disagreement measures the policy's uncertainty.

Wang, Ren, Zhu, Zhang, "Function Space Particle Optimization for Bayesian Neural Networks", ICLR 2019
(arXiv:1902.09754), with the directions of :mod:`imitate.functional.particles`. With o_m(s) = the outputs of member m of
n, a = the demonstrated action, s = the observation, x = copies of observations with noise, whose action is not known:

    loss      mean over members of |o_m(s) - a|^2, or of the cross-entropy of a choice   -> BCEnsemble._member_losses
    particles the members' outputs at s and x together (``of`` outputs), or their weights -> BCEnsemble._loss
    update    g = direction(particles, d loss / d particles), then d weights = g . d particles / d weights
                                                                                          -> BCEnsemble._loss
    acting    the mean of the members' actions, or the most likely choice of their mean   -> BCEnsemble._act
    uncertainty  continuous actions: root of the members' variance, averaged over the dimensions;
                 choices: entropy of the mean minus mean of the entropies                 -> disagreement

With ``hypernetwork.enabled`` the members' weights are made from noise (:mod:`imitate.models.generator`): each update
draws new members, and the n members that act are made from noise that is drawn once and saved  -> GeneratedActor

The members are computed as one network, by batched matrix products. At demonstrated observations the loss keeps the
members together; elsewhere only the repulsion acts and pushes them apart.

Departures: the noise is added to the encoder's features, so that it has the same meaning for vectors and images, in
units of each feature's standard deviation over the batch; the loss is a mean instead of a sum over the data, so that
``weight`` has the unit of a squared action instead of being 1; the function of ``minmax`` sees one observation's output
at a time, because a function of a whole batch's outputs would depend on the size of the batch. All members learn from
all rows: their initial weights and the repulsion make the difference, not a bootstrap.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.sections import EMAConfig, LayerDims
from imitate.config import AlgoSection, BaseConfig, Section
from imitate.config.optimizer import Networks, adam, networks
from imitate.functional.losses import masked_mean, step_weight
from imitate.functional.particles import RULES, stein_objective
from imitate.functional.sampling import draw_class, pick_class
from imitate.models.actor import GroupEncoder, Inputs, Obs, PolicyNetwork
from imitate.models.categorical import one_hot
from imitate.models.critics import EnsembleLinear
from imitate.models.generator import Generator, WeightLayout, directions, mlp
from imitate.models.mlp import MLP


class ParticlesConfig(Section):
    """Repulsion that keeps the members of the ensemble different."""

    rule: Literal["svgd", "gfsf", "minmax", "gpvi", "none"] = Field(
        "gfsf",
        description="rule that computes the repulsion of the members. none: they are independent; gpvi: only for "
        "weights made by a hypernetwork, with a kernel between their noise values",
    )
    of: Literal["outputs", "weights"] = Field(
        "outputs",
        description="quantities that repel each other: the members' outputs on the batch, or their weights, whose "
        "distances mean little in large networks",
    )
    weight: float = Field(
        0.01, ge=0, description="strength of the repulsion, in units of a squared normalized action"
    )
    extra_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="number of noisy copies of observations, as a fraction of the batch. No actions are known for the "
        "copies, so members are only pushed apart at them",
    )
    extra_noise: float = Field(
        1.0,
        ge=0,
        description="standard deviation of the noise in the copies of extra_share, in standard deviations of each "
        "feature over the batch",
    )
    critic_layer_dims: LayerDims = Field(
        (100, 100), description="widths of the hidden layers of the function that minmax learns"
    )
    critic_steps: int = Field(
        2, ge=1, description="number of updates of the function of minmax per update of the members"
    )


class HypernetworkConfig(Section):
    """Hypernetwork that generates the weights of all members from noise."""

    enabled: bool = Field(
        False, description="generate the weights of the members from noise by a hypernetwork"
    )
    noise_dim: int = Field(
        8,
        ge=1,
        description="number of noise values from which the weights of a member are generated",
    )
    layer_dims: LayerDims = Field(
        (64, 64), description="widths of the hidden layers of the hypernetwork"
    )
    link: float = Field(
        0.0,
        ge=0,
        description="standard deviation of noise that is added to each weight, as a fraction of its usual initial "
        "size; gpvi needs a value above 0, such as 0.1",
    )


class BCEnsembleConfig(AlgoSection):
    """Options of algorithm ``bc_ensemble``, under ``algo``."""

    optim_params: Networks = networks(
        "BCEnsembleOptimParams", policy=adam(1e-3), repulsion=adam(1e-3)
    )
    members: int = Field(5, ge=2, description="n, number of policies in the ensemble")
    actor_layer_dims: LayerDims = Field(
        (256, 256), description="widths of the hidden layers of each member"
    )
    num_choices: int = Field(
        0,
        ge=0,
        description="number of choices of a discrete action, which is one-hot in the data; 0: actions are continuous",
    )
    particles: ParticlesConfig = Field(ParticlesConfig())
    hypernetwork: HypernetworkConfig = Field(HypernetworkConfig())
    ema: EMAConfig = Field(EMAConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        particles, made = self.particles, self.hypernetwork
        found = []
        if particles.rule == "minmax" and particles.of == "weights":
            found.append(
                "algo.particles: minmax of weights needs a function with as many inputs as a member has weights: set "
                "of to outputs, or rule to svgd"
            )
        if particles.rule == "gpvi" and (
            particles.of == "outputs" or not made.enabled or not made.link
        ):
            found.append(
                "algo.particles.rule: gpvi is for weights that are made from noise: set particles.of to weights, "
                "hypernetwork.enabled to true and hypernetwork.link above 0, or rule to gfsf"
            )
        return found


class DrawnMembers(NamedTuple):
    """The ensemble drawn for one update: noise and network weights (E, D) of each member."""

    noise: Tensor
    particles: Tensor


class EnsembleActor(PolicyNetwork):
    """Encoder -> n MLPs, computed as one batched module; the members share only the encoder."""

    def __init__(
        self, encoder: GroupEncoder, size: int, layer_dims: LayerDims, output_dim: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.size = size
        self._create_layers([encoder.output_dim, *layer_dims, output_dim])

    def _create_layers(self, widths: Sequence[int]) -> None:
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.layers = nn.ModuleList(EnsembleLinear(self.size, n, m) for n, m in pairs[:-1])
        self.head = EnsembleLinear(self.size, *pairs[-1])

    def drawn(self) -> DrawnMembers | None:
        """Draw members for an update; None if the members are always the same."""
        return None

    def members(self, features: Tensor, drawn: DrawnMembers | None = None) -> Tensor:
        """Map features (B, D) of the encoder to the members' outputs (E, B, A), before any tanh, in float32."""
        x = features.expand(self.size, -1, -1)
        for layer in self.layers:
            x = F.relu_(layer(x))
        outputs: Tensor
        # skip the autocast context if autocast is off, because entering it takes as long as a layer
        if not torch.is_autocast_enabled(x.device.type):
            outputs = self.head(x)
            return outputs
        with torch.autocast(x.device.type, enabled=False):
            outputs = self.head(x.float())
        return outputs

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the members' outputs (E, B, A)."""
        return self.members(self.encoder(inputs["obs"], inputs["goal"]))

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return the members' outputs (E, B, A)."""
        return self.decide({"obs": obs, "goal": goal})


class GeneratedActor(EnsembleActor):
    """Encoder -> n MLPs, whose weights a network generates from noise; ``noise`` belongs to the acting members."""

    noise: Tensor

    def __init__(
        self,
        encoder: GroupEncoder,
        size: int,
        layer_dims: LayerDims,
        output_dim: int,
        config: HypernetworkConfig,
    ) -> None:
        self._config = config
        super().__init__(encoder, size, layer_dims, output_dim)

    def _create_layers(self, widths: Sequence[int]) -> None:
        config, self.layout = self._config, WeightLayout(widths)
        self.generator = Generator(
            self.layout.size, config.noise_dim, config.layer_dims, config.link
        )
        self.register_buffer("noise", self.generator.draw(self.size))

    def drawn(self) -> DrawnMembers | None:
        """Draw new members."""
        noise = self.generator.draw(self.size)
        return DrawnMembers(noise, self.generator(noise))

    def members(self, features: Tensor, drawn: DrawnMembers | None = None) -> Tensor:
        """Map features (B, D) to outputs (E, B, A) of ``drawn`` members, or of the acting members, in float32."""
        with torch.autocast(features.device.type, enabled=False):
            particles = self.generator(self.noise) if drawn is None else drawn.particles
            x = features.float().expand(self.size, -1, -1)
            return mlp(self.layout, particles.float(), x)


class Repulsion(nn.Module):
    """Learned function of the rule ``minmax``: displaces the members' outputs (E, B, A) for features (B, D)."""

    def __init__(self, feature_dim: int, output_dim: int, layer_dims: LayerDims) -> None:
        super().__init__()
        self.mlp = MLP(feature_dim + output_dim, layer_dims, activation=torch.tanh)
        self.last = nn.Linear(self.mlp.output_dim, output_dim)

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Return the displacement of each output."""
        seen = features.expand(len(outputs), -1, -1)
        moved: Tensor = self.last(self.mlp(torch.cat([seen, outputs], dim=-1)))
        return moved


def disagreement(outputs: Tensor, mean: Tensor, *, of_choices: bool) -> Tensor:
    """Return the uncertainty (*B,).

    ``outputs`` (E, *B, A) are the members' actions, or probabilities of choices; ``mean`` (*B, A) is their mean.
    """
    if not of_choices:
        # this takes a fifth of the time of torch.var over the first axis
        spread: Tensor = (outputs - mean).square().mean((0, -1))
        return spread.sqrt()
    own: Tensor = torch.special.entr(outputs).sum(-1).mean(0)
    whole: Tensor = torch.special.entr(mean).sum(-1)
    return (whole - own).clamp(min=0.0)


@register("bc_ensemble", BCEnsembleConfig)
class BCEnsemble(Algo[BCEnsembleConfig]):
    """Ensemble of policies that agree near demonstrated observations and disagree elsewhere."""

    gives_uncertainty = True

    @property
    def policy(self) -> EnsembleActor:
        """Network that learns and acts."""
        return cast(EnsembleActor, self.active_nets["policy"])

    def _create_networks(self) -> None:
        config, encoder = self.config, self._create_encoder()
        sizes = (config.members, config.actor_layer_dims, self.ac_dim)
        if config.hypernetwork.enabled:
            policy: EnsembleActor = GeneratedActor(encoder, *sizes, config.hypernetwork)
        else:
            policy = EnsembleActor(encoder, *sizes)
        self.nets = nn.ModuleDict({"policy": policy})
        if config.particles.rule == "minmax":
            self.nets["repulsion"] = Repulsion(
                encoder.output_dim, self.ac_dim, config.particles.critic_layer_dims
            )

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the stacked frames and the action of the current step."""
        obs, step = self.policy.select(batch["obs"], batch["actions"].shape[1])
        weight = batch.get("weight")
        return {
            "obs": obs,
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, step],
            "weight": None if weight is None else weight[:, step],
        }

    # ---- losses ------------------------------------------------------------------------------------------------------

    def _actions(self, outputs: Tensor) -> Tensor:
        """Convert outputs to actions in [-1, 1], or to probabilities of choices."""
        return outputs.softmax(-1) if self.config.num_choices else outputs.tanh()

    def _member_losses(self, actions: Tensor, batch: Batch) -> Tensor:
        """Return the loss (E,) of each member's actions or probabilities (E, B, A)."""
        wanted, weight = batch["actions"], step_weight(batch)
        if self.config.num_choices:
            tiny = torch.finfo(actions.dtype).tiny
            errors: Tensor = -(wanted * actions.clamp(min=tiny).log()).sum(-1)
        else:
            errors = (actions - wanted).square().mean(-1)
        if weight is None:
            return errors.mean(1)
        return torch.stack([masked_mean(error, weight) for error in errors])

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return a scalar whose gradient is the direction of the particles, and the members' mean loss."""
        policy, particles = self.policy, self.config.particles
        count = len(batch["actions"])
        with self.autocast():
            features = policy.encoder(batch["obs"], batch["goal_obs"])
            if not torch.is_grad_enabled():
                losses = self._member_losses(self._actions(policy.members(features)), batch)
                return losses.mean(), {"Loss": losses.mean()}
            repels = particles.rule != "none" and particles.of == "outputs"
            seen = torch.cat([features, self.noisy(features)]) if repels else features
            drawn = policy.drawn()
            actions = self._actions(policy.members(seen, drawn))
        ends = actions.detach().requires_grad_() if repels else actions
        losses = self._member_losses(ends[:, :count], batch)
        info = {"Loss": losses.mean(), "Disagreement": self._spread(ends[:, :count])}
        if particles.rule == "none":
            return losses.sum(), info
        if not repels:
            return self._weights_moved(losses, drawn), info
        (gradients,) = torch.autograd.grad(losses.sum(), ends)
        if particles.rule == "minmax":
            moved, more = self._learned(seen.detach(), ends.detach(), gradients)
            info |= more
        else:
            rule = RULES[particles.rule]
            moved = rule(ends.detach().flatten(1), gradients.flatten(1), particles.weight)
            if ends.shape[1] > count:
                info["Disagreement_Outside"] = self._spread(ends[:, count:])
        return (moved.view_as(actions) * actions).sum(), info

    def _spread(self, actions: Tensor) -> Tensor:
        actions, of_choices = actions.detach(), bool(self.config.num_choices)
        return disagreement(actions, actions.mean(0), of_choices=of_choices).mean()

    def noisy(self, features: Tensor) -> Tensor:
        """Return noisy copies of the features of the first rows of a batch (``particles.extra_share``)."""
        particles = self.config.particles
        rows = round(particles.extra_share * len(features))
        known = features.detach()
        scale = particles.extra_noise * known.std(0, correction=0)
        return known[:rows] + scale * torch.randn_like(known[:rows])

    def _weights_moved(self, losses: Tensor, drawn: DrawnMembers | None) -> Tensor:
        """Return a scalar whose gradients are the directions of members' weights, and the encoder's loss gradient."""
        policy = self.policy
        if drawn is None:
            own: list[Tensor] = [
                weight for part in (policy.layers, policy.head) for weight in part.parameters()
            ]
        else:
            own = [drawn.particles]
        shared = [weight for weight in policy.encoder.parameters() if weight.requires_grad]
        found = torch.autograd.grad(losses.sum(), [*own, *shared])
        gradients = torch.cat([each.flatten(1) for each in found[: len(own)]], dim=1)
        points = torch.cat([weight.detach().flatten(1) for weight in own], dim=1)
        rule, strength = self.config.particles.rule, self.config.particles.weight
        if isinstance(policy, GeneratedActor) and drawn is not None:
            moved = directions(rule, policy.generator, drawn.noise, points, gradients, strength)
        else:
            moved = RULES[rule](points, gradients, strength)
        parts = torch.split(moved, [weight[0].numel() for weight in own], dim=1)
        members = sum(
            (part.view_as(weight) * weight).sum() for part, weight in zip(parts, own, strict=True)
        )
        encoder = sum((g * w).sum() for g, w in zip(found[len(own) :], shared, strict=True))
        return cast(Tensor, members + encoder)

    def _learned(self, features: Tensor, actions: Tensor, gradients: Tensor) -> tuple[Tensor, Info]:
        """Update the function of ``minmax``, and return its directions (E, N, A) for the outputs, and info."""
        repulsion, particles = self.nets["repulsion"], self.config.particles
        rows = actions.shape[1]
        value = actions.new_zeros(())
        for _ in range(particles.critic_steps):
            probe = torch.randint_like(actions, 2) * 2.0 - 1.0
            # multiplied by the number of rows, because the loss is a mean over the rows, and the objective needs
            # gradients per row
            value = stein_objective(
                lambda outputs: cast(Tensor, repulsion(features, outputs)),
                actions,
                gradients * rows,
                particles.weight,
                probe,
            )
            self._gradient_step("repulsion", -value)
        with torch.no_grad():
            return -repulsion(features, actions) / rows, {"Stein_Discrepancy": value}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the mean action, in normalized units, and the members' disagreement."""
        members = self._actions(self.policy(batch["obs"], batch["goal_obs"]))
        error = (members.mean(0) - batch["actions"]).abs().mean(-1)
        return {
            "Action_Error": masked_mean(error, step_weight(batch)),
            "Disagreement": self._spread(members),
        }

    # ---- test time ---------------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        """Return the mean action, or, to explore, the action of a member that is drawn for each row."""
        members = self._actions(self.policy(obs, goal))
        chosen = action = mean = members.mean(0)
        if explore:
            which = draw_class(action.new_zeros(len(action), len(members)), generator)
            chosen = action = pick_class(members.movedim(0, 1), which)
        of_choices = bool(self.config.num_choices)
        extras = {"uncertainty": disagreement(members, mean, of_choices=of_choices)}
        if of_choices:
            action = one_hot(
                draw_class(chosen.log(), generator) if explore else chosen.argmax(-1), chosen
            )
            extras["entropy"] = torch.special.entr(mean).sum(-1)
        return PolicyStep(action, state, extras)
