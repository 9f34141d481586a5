"""TD-MPC2: planning in a learned latent model, with values after the end of the plan and a policy that proposes plans.

Hansen, Su, Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control", ICLR 2024 (arXiv:2310.16828); the
cloning of demonstrations and the planning near the policy are those of Newt (Hansen et al. 2025, arXiv:2511.19584).
With windows o_0, a_0, r_0 ... o_H of replayed or recorded steps, encoder h, z_0 = h(o_0), z_{t+1} = d(z_t, a_t), E
critics Q with targets Q', the discount g and the step weights w_t = rho^t / H:

    consistency  sum_t w_t |z_{t+1} - h(o_{t+1})|^2 / D, without gradient of h(o_{t+1})      -> TDMPC2.model_loss
    reward       sum_t w_t CE(R(z_t, a_t), two-hot(symlog r_t))                              -> TDMPC2.model_loss
    value        sum_t w_t mean_e CE(Q_e(z_t, a_t), two-hot(symlog y_t))                     -> TDMPC2.model_loss
                 y_t = r_t + g min of two random Q'(h(o_{t+1}), a'), a' ~ pi; r_t at an end  -> TDMPC2.td_targets
    ends         binary cross-entropy of an end, predicted from z_{t+1}, with ``ends``       -> TDMPC2.model_loss
    policy       -sum_t rho^t / (H + 1) [mean of two random Q(z_t, a) / S + beta A entropy], a ~ pi(z_t),
                 + cloning |a - a_t|^2 / A on demonstrations                                 -> TDMPC2.policy_loss
    score        sum_{t<H} g^t R(z_t, a_t) + g^H mean of two random Q(z_H, a), nothing after an end
                                                                                             -> TDMPC2.score
    act          MPPI with plans of the policy among its candidates                          -> TDMPC2._act

Latent states are products of simplices (:class:`~imitate.models.latent.SimNorm`). S is the moving distance between the
5th and 95th percentile of Q, at least 1; the entropy is computed for the Gaussian before its tanh, times the number of
action dimensions A, as in the authors' code.

Departures: windows that are cut short by an episode's end are drawn and masked, instead of never drawn; all plans of
one problem use the same two critics; image features pass through an MLP before SimNorm; Adam's epsilon is 1e-8 for the
policy too; all tasks share one discount and use all action dimensions; an instruction's embedding passes through a
learned linear map.
"""

import math
from functools import cached_property, partial
from typing import Annotated, Any, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from typing_extensions import Self

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.encoding import weight_of_window
from imitate.algo.base.factory import register
from imitate.algo.base.optimization import updates_per_epoch
from imitate.algo.base.policy_state import InnerState, PolicyState
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.auxiliary import newest_frame, window_of
from imitate.algo.slots.planner import PLANNERS, MPPIConfig, Planner, PlannerConfig, built, finite
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Section, Transitions
from imitate.config.auxiliary import joint_following
from imitate.config.data_needs import FollowingSteps
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import categorical_cross_entropy
from imitate.functional.sampling import draw_normal, fill_uniform
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.critics import polyak_update_, target_of
from imitate.models.latent import Atoms, LogitEnsemble, SimNorm, normed_mlp

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_STD = (-10.0, 2.0)
"""Limits of the policy's log standard deviations."""
SPREAD_RATE = 0.01
"""Rate at which the running scale of the values moves towards the scale in a batch."""
ENCODER_RATE = 0.3
"""Learning rate of the encoder relative to that of the other networks."""
LONGEST = 1000
"""Assumed number of steps per episode if the length is unknown."""


class CriticsConfig(Section):
    """Critics, whose values are distributions over atoms in symlog units; rewards have the same atoms."""

    n: int = Field(5, ge=2, description="E, number of critics")
    dropout: float = Field(0.01, ge=0, lt=1, description="dropout in the critics' first layer")
    num_atoms: int = Field(101, ge=2, description="atoms per distribution of values or rewards")
    limits: tuple[float, float] = Field(
        (-10.0, 10.0), description="lowest and highest atom, in symlog units: 10 means 22,025"
    )


class LossWeightsConfig(Section):
    """Weights of the losses."""

    consistency: float = Field(
        20.0, ge=0, description="weight of the error of predicted latent states"
    )
    reward: float = Field(0.1, ge=0, description="weight of the cross-entropy of rewards")
    value: float = Field(0.1, ge=0, description="weight of the cross-entropy of values")
    ends: float = Field(1.0, ge=0, description="weight of the loss of predicted episode ends")
    entropy: float = Field(
        1e-4, ge=0, description="beta, weight of the entropy in the policy's loss"
    )
    cloning: float = Field(
        0.0,
        ge=0,
        description="weight of the squared error between the policy's and the demonstrations' actions; 10 in Newt; 0: "
        "no cloning",
    )


class NearConfig(Section):
    """Search that begins near the policy's own plans."""

    share: float = Field(
        0.0, ge=0, le=1, description="weight of the policy's plans where a search starts"
    )
    until: float | None = Field(
        0.5,
        gt=0,
        le=1,
        description="fraction of the training, after pretraining, at which the share reaches 0; null: the share is "
        "constant",
    )
    evaluation: float = Field(
        0.0,
        ge=0,
        le=1,
        description="smallest share of the policy's plans when acting without exploration, as in evaluations",
    )


class TDMPC2Config(AlgoSection):
    """Options of algorithm ``tdmpc2``, under ``algo``."""

    tree_defaults = {
        "train": {"batch_size": 256, "max_grad_norm": 20.0, "online": {"enabled": True}}
    }

    optim_params: Networks = networks("TDMPC2OptimParams", model=3e-4, policy=3e-4)
    planner: Annotated[PlannerConfig, PLANNERS] = Field(
        MPPIConfig(type="mppi", horizon=3, population=512, elites=64, iterations=6),
        description="planner, which searches for actions; its horizon H is also the length of the windows",
    )
    plan: bool = Field(True, description="act by planning; false: by the policy alone")
    policy_plans: int = Field(
        24, ge=0, description="number of the policy's plans among each iteration's candidates"
    )
    near: NearConfig = Field(NearConfig())
    discount: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="discount factor per step; null: 1 - 5 / T for episodes of T steps, within [0.95, 0.995]",
    )
    latent_dim: int = Field(512, ge=1, description="size D of a latent state")
    simplex_dim: int = Field(8, ge=2, description="size of each simplex in a latent state")
    encoder_layer_dims: LayerDims = Field((256,), description="hidden widths of the encoder")
    layer_dims: LayerDims = Field((512, 512), description="hidden widths of the other networks")
    critic: CriticsConfig = Field(CriticsConfig())
    ends: bool = Field(False, description="predict episode ends; false: plan as if none ended")
    rho: float = Field(
        0.5, gt=0, le=1, description="loss weight of a step relative to the previous step's"
    )
    weights: LossWeightsConfig = Field(LossWeightsConfig())
    target_tau: float = Field(0.01, gt=0, le=1, description="Polyak rate of the target critics")
    task: str | None = Field(
        None,
        description="observation that names the task, such as lang_emb or a one-hot vector; all networks see an "
        "embedding of it; null: one task",
    )
    task_dim: int = Field(96, ge=1, description="size of the embedding of a task")

    @model_validator(mode="after")
    def _whole_simplices(self) -> Self:
        if self.latent_dim % self.simplex_dim:
            raise ValueError(
                f"latent_dim {self.latent_dim} is not a multiple of simplex_dim {self.simplex_dim}: change one of them"
            )
        return self

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only up to the current step, and from a replay buffer also transitions."""
        transitions = Transitions() if config.train.online.enabled else None
        return DataNeeds(transitions=transitions, observed_steps=config.train.frame_stack)

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Request the H steps that follow each sample, with rewards and episode ends."""
        own = FollowingSteps(self.planner.horizon, rewards=True, ends=True)
        return joint_following([super().following(config), own])

    def values_from_horizon(self, steps: int) -> dict[str, Any]:
        """Compute ``discount`` from the length of the episodes, if it is null."""
        return {"discount": discount_of(steps)} if self.discount is None else {}

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        train, online = config.train, config.train.online
        no_demos = online.enabled and not online.demo_ratio and not online.pretrain_updates
        population = self.planner.get("population", None)
        found = {
            f"train.gradient_accumulation is {train.gradient_accumulation}, but target networks move after every "
            "batch: set it to 1 and enlarge train.batch_size": train.gradient_accumulation > 1,
            "train.precision is 'bf16', too coarse for values: set it to 'fp32'": (
                train.precision == "bf16"
            ),
            "train.online.hindsight.enabled is true, but all steps of a window need one goal: set it to false": (
                online.hindsight.enabled
            ),
            "train.online.wrappers contains 'repeated', but steps of a window have equal durations: leave it out": (
                online.repeats
            ),
            f"algo.policy_plans is {self.policy_plans}, but the planner has {population} candidates: lower it": (
                population is not None and self.policy_plans >= population
            ),
            **{
                f"algo.near.{name} is {share:g}, but algo.policy_plans is 0: set policy_plans to 24": (
                    share > 0 and not self.policy_plans
                )
                for name, share in (
                    ("share", self.near.share),
                    ("evaluation", self.near.evaluation),
                )
            },
            f"algo.weights.cloning is {self.weights.cloning:g}, but there are no demonstrations: set "
            "train.online.demo_ratio or pretrain_updates, or the weight to 0": (
                self.weights.cloning > 0 and no_demos
            ),
            f"algo.task is '{self.task}', which is not an observation: list it in observation.modalities.obs": (
                self.task is not None and self.task not in config.observation.modality_of("obs")
            ),
        }
        return [words for words, holds in found.items() if holds]


def discount_of(steps: int) -> float:
    """Return the discount for episodes of this number of steps."""
    return min(max((steps / 5 - 1) / (steps / 5), 0.95), 0.995)


# ---- networks ----------------------------------------------------------------------------------------------------


class LatentEncoder(nn.Module):
    """Encoder of observations, then an MLP to latent states. Its learning rate is lower, by :data:`ENCODER_RATE`."""

    lr_scale = ENCODER_RATE

    def __init__(self, obs: GroupEncoder, task_dim: int, config: TDMPC2Config) -> None:
        super().__init__()
        self.obs = obs
        inputs, simplices = obs.output_dim + task_dim, SimNorm(config.simplex_dim)
        self.mlp = normed_mlp(inputs, config.encoder_layer_dims, config.latent_dim, simplices)

    def forward(self, obs: Obs, goal: Obs | None, task: Tensor | None) -> Tensor:
        """Map observations (B, [F,] ...) and embeddings of tasks (B, T) to (B, D)."""
        return cast(Tensor, self.mlp(joined(self.obs(obs, goal), task)))


class Spread(nn.Module):
    """Scale of the values: the moving distance between their 5th and 95th percentile, at least 1."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones(()))

    @torch.no_grad()
    def after(self, values: Tensor) -> Tensor:
        """Return the scale after a batch of values (B,)."""
        ordered, last = values.detach().sort().values, len(values) - 1
        low, high = (
            torch.lerp(ordered[math.floor(place)], ordered[math.ceil(place)], place % 1.0)
            for place in (0.05 * last, 0.95 * last)
        )
        return torch.lerp(self.value, (high - low).clamp(min=1.0), SPREAD_RATE)


class WorldModel(nn.Module):
    """Latent model: encoder, dynamics, rewards, ends and critics, which are trained by one loss.

    Attributes:
        near: current share of the policy's plans at the start of a search.
    """

    near: Tensor

    def __init__(
        self, obs: GroupEncoder, task_size: int, ac_dim: int, config: TDMPC2Config
    ) -> None:
        super().__init__()
        task_dim = config.task_dim if task_size else 0
        inputs, hidden = config.latent_dim + task_dim + ac_dim, config.layer_dims
        self.encoder = LatentEncoder(obs, task_dim, config)
        self.dynamics = normed_mlp(inputs, hidden, config.latent_dim, SimNorm(config.simplex_dim))
        self.reward = normed_mlp(inputs, hidden, config.critic.num_atoms)
        nn.init.zeros_(cast(Tensor, self.reward[-1].weight))
        self.ends = normed_mlp(config.latent_dim + task_dim, hidden, 1) if config.ends else None
        critic = config.critic
        self.critics = LogitEnsemble(critic.n, inputs, hidden, critic.num_atoms, critic.dropout)
        self.task = nn.Linear(task_size, task_dim, bias=False) if task_size else None
        if self.task is not None:
            nn.init.uniform_(self.task.weight, -0.02, 0.02)
        self.spread = Spread()
        self.atoms = Atoms(*critic.limits, critic.num_atoms)
        self.register_buffer("near", torch.tensor(config.near.share))

    def embedded(self, task: Tensor | None) -> Tensor | None:
        """Return the embedding (B, T) of the task (B, ...), with a norm of at most 1, or None without tasks."""
        if self.task is None or task is None:
            return None
        found: Tensor = self.task(task.flatten(1))
        norm: Tensor = found.norm(dim=-1, keepdim=True)
        return found / norm.clamp(min=1.0)


def joined(z: Tensor, task: Tensor | None, *more: Tensor) -> Tensor:
    """Concatenate latent states (B, ..., D), embeddings of tasks (B, T) and other inputs (B, ..., A)."""
    if task is not None:
        more = (task.view(len(task), *[1] * (z.dim() - 2), -1).expand(*z.shape[:-1], -1), *more)
    return torch.cat([z, *more], dim=-1) if more else z


# ---- the algorithm -----------------------------------------------------------------------------------------------


@register("tdmpc2", TDMPC2Config)
class TDMPC2(Algo[TDMPC2Config]):
    """Algorithm that plans in a latent model."""

    main_net = "model"
    acting_nets = ("policy",)
    targets = {"critic_target": "model.critics"}
    gives_errors = True
    keeps_errors = False
    sample_errors: Tensor | None = None

    def _create_networks(self) -> None:
        config, task = self.config, self.config.task
        encoder = self.encoding.encoder(keys=[key for key in self.obs_shapes if key != task])
        size = math.prod(self.obs_shapes[task]) if task is not None else 0
        model = WorldModel(encoder, size, self.ac_dim, config)
        inputs = config.latent_dim + (config.task_dim if size else 0)
        policy = normed_mlp(inputs, config.layer_dims, 2 * self.ac_dim)
        self.nets = nn.ModuleDict({"model": model, "policy": policy})
        self.nets["critic_target"] = target = target_of(model.critics)
        target.dropout = 0.0
        self.counters["updates"] = 0
        self.random_needs_act = self.frame_stack > 1

    @property
    def model(self) -> WorldModel:
        """The latent model."""
        return cast(WorldModel, self.nets["model"])

    @cached_property
    def planner(self) -> Planner:
        """The planner, which searches for actions in the learned model."""
        return built(self.config.planner, self.ac_dim)

    @cached_property
    def discount(self) -> float:
        """Discount factor per step."""
        known = self.global_config.experiment.rollout.horizon
        return self.config.discount or discount_of(known or LONGEST)

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the weight of each sample, and the goal; the window is added as ``experience``."""
        return weight_of_window(batch, self.frame_stack, "tdmpc2")

    def task_of(self, obs: Obs) -> Tensor | None:
        """Return the embedding (B, T) of the task in observations (B, [F,] ...)."""
        if self.config.task is None:
            return None
        return self.model.embedded(newest_frame(obs, self.frame_stack)[self.config.task])

    def _encoded(self, obs: Obs, goal: Obs | None, task: Tensor | None) -> Tensor:
        """Return latent states (B, T, D) of windows of observations (B, T, [F,] ...)."""
        size, steps = next(iter(obs.values())).shape[:2]
        rows = {key: value.flatten(0, 1) for key, value in obs.items()}
        goals = {k: x.repeat_interleave(steps, 0) for k, x in goal.items()} if goal else None
        tasks = None if task is None else task.repeat_interleave(steps, 0)
        return cast(Tensor, self.model.encoder(rows, goals, tasks)).view(size, steps, -1)

    def policy(self, z: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation (*B, A) of the policy before its tanh."""
        mean, spread = self.nets["policy"](joined(z, task)).chunk(2, dim=-1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (spread.tanh() + 1.0)

    def _two_values(self, critics: nn.Module, inputs: Tensor) -> Tensor:
        """Return values (2, *B) by two random critics."""
        pair = torch.randperm(self.config.critic.n, device=inputs.device)[:2]
        logits = critics(inputs.flatten(0, -2).expand(2, -1, -1), pair)
        return self.model.atoms.mean(logits).view(2, *inputs.shape[:-1])

    @torch.no_grad()
    def td_targets(
        self, after: Tensor, task: Tensor | None, rewards: Tensor, ends: Tensor
    ) -> Tensor:
        """Return TD targets (B, H) from the latent states (B, H, D) after each step."""
        mean, log_std = self.policy(after, task)
        actions = draw_normal(mean, log_std.exp()).tanh()
        values = self._two_values(self.nets["critic_target"], joined(after, task, actions)).amin(0)
        return rewards + self.discount * (1.0 - ends) * values

    def model_loss(self, batch: Batch) -> tuple[Tensor, Info, Tensor]:
        """Return the model's loss, scalars to log, and the latent states (B, H + 1, D) of the windows."""
        model, weights = self.model, self.config.weights
        window = window_of(batch["experience"], self.config.planner.horizon)
        obs, actions, ends = window["obs"], window["actions"], window["ends"]
        goal = batch["goal_obs"]
        task = self.task_of({key: value[:, 0] for key, value in obs.items()})
        with torch.no_grad():
            after = self._encoded({key: x[:, 1:] for key, x in obs.items()}, goal, task)
            target = self.td_targets(after, task, window["rewards"], ends)
            wanted = model.atoms.two_hot(target), model.atoms.two_hot(window["rewards"])
        z = self._encoded({key: x[:, :1] for key, x in obs.items()}, goal, task)[:, 0]
        states = [z]
        for action in actions.unbind(1):
            states.append(model.dynamics(joined(states[-1], task, action)))
        zs = torch.stack(states, dim=1)
        inputs = joined(zs[:, :-1], task, actions)
        rows = inputs.flatten(0, 1).expand(self.config.critic.n, -1, -1)
        logits = model.critics(rows).view(len(rows), *actions.shape[:2], -1)
        known = window["mask"].to(zs)
        real = torch.maximum(known, ends)
        errors = {
            "Consistency_Loss": (zs[:, 1:] - after).square().mean(-1) * known,
            "Reward_Loss": categorical_cross_entropy(model.reward(inputs), wanted[1]) * real,
            "Value_Loss": categorical_cross_entropy(logits, wanted[0]).mean(0) * real,
        }
        rho = self._step_weights(actions.shape[1], batch["weight"])
        parts = {name: (rho * error).mean() for name, error in errors.items()}
        loss = weights.consistency * parts["Consistency_Loss"]
        loss = loss + weights.reward * parts["Reward_Loss"] + weights.value * parts["Value_Loss"]
        if model.ends is not None:
            guessed = model.ends(joined(zs[:, 1:], task)).squeeze(-1)
            wrong = F.binary_cross_entropy_with_logits(guessed, ends, reduction="none") * real
            parts["Ends_Loss"] = self._weighted(wrong, batch["weight"]).mean()
            loss = loss + weights.ends * parts["Ends_Loss"]
        values = model.atoms.mean(logits[:, :, 0].detach()).mean(0)
        if self.keeps_errors:
            self.sample_errors = (values - target[:, 0]).abs()
        info = {**parts, "Q": values.mean(), "Q_Targets": target.mean(), "Model_Loss": loss}
        return loss, info, zs

    def _step_weights(self, steps: int, weight: Tensor | None) -> Tensor:
        """Return rho^t (1, steps), times the weights (B, 1) of the samples."""
        rho = self.config.rho ** torch.arange(steps, device=self.device)
        return self._weighted(rho.unsqueeze(0), weight)

    @staticmethod
    def _weighted(errors: Tensor, weight: Tensor | None) -> Tensor:
        return errors if weight is None else errors * weight

    def policy_loss(self, batch: Batch, zs: Tensor) -> tuple[Tensor, Info, Tensor]:
        """Return the policy's loss, scalars to log, and the new scale of the values."""
        model, weights, zs = self.model, self.config.weights, zs.detach()
        experience = batch["experience"]
        window = window_of(experience, self.config.planner.horizon)
        with torch.no_grad():
            task = self.task_of({key: value[:, 0] for key, value in window["obs"].items()})
        mean, log_std = self.policy(zs, task)
        noise = torch.randn_like(mean)
        actions = (mean + noise * log_std.exp()).tanh()
        entropy = (0.5 * noise.square() + log_std + HALF_LOG_TWO_PI).sum(-1) * self.ac_dim
        values = self._two_values(model.critics, joined(zs, task, actions)).mean(0)
        scale = model.spread.after(values[:, 0])
        rho = self._step_weights(zs.shape[1], batch["weight"])
        known = window["mask"].to(zs)
        begun = torch.cat([torch.ones_like(known[:, :1]), known], dim=1)
        loss = -((values / scale + weights.entropy * entropy) * rho * begun).mean()
        info = {"Entropy": entropy.mean() / self.ac_dim, "Scale": scale}
        if weights.cloning > 0:
            distance = (actions[:, :-1] - window["actions"]).square().mean(-1)
            is_demo = (experience["part"] > 0).to(zs).unsqueeze(1)
            real = torch.maximum(known, window["ends"]) * is_demo
            info["Cloning_Loss"] = (distance * rho[:, :-1] * real).sum() / begun.numel()
            loss = loss + weights.cloning * info["Cloning_Loss"]
        return loss, {**info, "Policy_Loss": loss}, scale

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the sum of the losses of model and policy."""
        loss, info, zs = self.model_loss(batch)
        policy, more, _ = self.policy_loss(batch, zs)
        return (total := loss + policy), {**info, **more, "Loss": total}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the policy's and the data's actions, in normalized units."""
        window = window_of(batch["experience"], 1)
        obs = {key: value[:, :1] for key, value in window["obs"].items()}
        task = self.task_of({key: value[:, 0] for key, value in obs.items()})
        mean, _ = self.policy(self._encoded(obs, batch["goal_obs"], task), task)
        return {"Action_Error": (mean.tanh() - window["actions"]).abs().mean()}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update model, policy and targets once; with ``validate`` only compute the losses."""
        if validate:
            return super().train_on_batch(batch, epoch, validate=True)
        more = learn_auxiliaries(self, batch)
        loss, info, zs = self.model_loss(batch)
        info["Model_Grad_Norms"] = self._gradient_step("model", loss)
        policy, of_policy, scale = self.policy_loss(batch, zs)
        info |= {**of_policy, "Policy_Grad_Norms": self._gradient_step("policy", policy)}
        model = self.model
        polyak_update_(self.nets["critic_target"], model.critics, self.config.target_tau)
        self.counters["updates"] += 1
        with torch.no_grad():
            model.spread.value.copy_(scale)
            model.near.fill_(self.near_share())
        # ranks see different values, so all take the scale of rank 0
        if self.optimization.share_weights is not None:
            self.optimization.share_weights(model.spread)
        follow_auxiliaries(self, batch)
        info["Loss"] = loss + policy
        return {name: value.detach() for name, value in info.items()} | more

    def near_share(self) -> float:
        """Return the share of the policy's plans at the start of a search after the updates so far."""
        near, train = self.config.near, self.global_config.train
        if near.until is None or near.share == 0:
            return near.share
        before = train.online.pretrain_updates if train.online.enabled else 0
        total = updates_per_epoch(self.global_config, rollouts=False) * (train.num_epochs or 1)
        done = max(0, self.counters["updates"] - before) / (near.until * total)
        return near.share * max(0.0, 1.0 - done)

    # ---- test time -----------------------------------------------------------------------------------------------

    def _near(self, explore: bool) -> Tensor | None:
        """Return the share, a scalar, of the policy's plans at the start of a search; None: always 0."""
        near = self.config.near
        if near.share == 0 and (explore or near.evaluation == 0):
            return None
        return self.model.near if explore else self.model.near.clamp(min=near.evaluation)

    def _proposals(
        self, z: Tensor, task: Tensor | None, generator: torch.Generator | None
    ) -> Tensor | None:
        """Return plans (B, P', H, A) of the policy from latent states (B, D)."""
        if not self.config.policy_plans:
            return None
        now = z.unsqueeze(1).expand(-1, self.config.policy_plans, -1)
        plan = []
        for _ in range(self.config.planner.horizon):
            mean, log_std = self.policy(now, task)
            plan.append(draw_normal(mean, log_std.exp(), generator).tanh())
            now = self.model.dynamics(joined(now, task, plan[-1]))
        return torch.stack(plan, dim=2)

    def score(
        self, z: Tensor, task: Tensor | None, generator: torch.Generator | None, plans: Tensor
    ) -> Tensor:
        """Return predicted returns (B, P) of plans (B, P, H, A) from latent states (B, D)."""
        model, size = self.model, plans.shape[1]
        now = z.unsqueeze(1).expand(-1, size, -1)
        total, factor = z.new_zeros(plans.shape[:2]), z.new_ones(plans.shape[:2])
        for action in plans.unbind(2):
            inputs = joined(now, task, action)
            total = total + factor * model.atoms.mean(model.reward(inputs))
            now, factor = model.dynamics(inputs), factor * self.discount
            if model.ends is not None:
                factor = factor * (model.ends(joined(now, task)).squeeze(-1) <= 0)
        mean, log_std = self.policy(now, task)
        actions = draw_normal(mean, log_std.exp(), generator).tanh()
        rows = joined(now, task, actions).repeat_interleave(2, 0)
        draws = fill_uniform(z.new_empty(len(z), self.config.critic.n), generator)
        logits = model.critics(rows, draws.topk(2).indices.flatten())
        total = total + factor * model.atoms.mean(logits).view(-1, 2, size).mean(1)
        return finite(total)

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
        task = self.task_of(obs)
        z = self.model.encoder(obs, goal, task)
        if not self.config.plan:
            mean, log_std = self.policy(z, task)
            action = draw_normal(mean, log_std.exp(), generator) if explore else mean
            return PolicyStep(action.tanh(), state, {})
        action, plan = self.planner.plan(
            partial(self.score, z, task, generator),
            state["plan"],
            explore=explore,
            generator=generator,
            proposals=self._proposals(z, task, generator),
            near=self._near(explore),
        )
        return PolicyStep(action, {"plan": plan}, {})

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        if not self.config.plan:
            return {}
        return {"plan": self.planner.initial_plan(batch_size, self.device)}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Return the state without the last plan."""
        if not self.config.plan:
            return state
        batch_size = len(next(iter(state["policy"]["plan"].values())))
        return {**state, "policy": self._initial_policy_state(batch_size)}
