"""Base of algorithms with an actor and critics: networks, transitions, target networks and acting, but no losses.

A subclass fills ``self.nets`` from :meth:`_create_actor` and :meth:`_create_critic`, adds targets under the names of
:attr:`targets`, and defines in :meth:`_update` in which order its losses are computed and minimized (:class:`Update`).
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.execution import ChunkExecution, Inputs
from imitate.algo.base.policy_state import InnerState, no_plan
from imitate.algo.base.rl_sections import (
    ActorConfig,
    ActorCriticConfig,
    CriticConfig,
    StochasticActorConfig,
)
from imitate.algo.base.rows import with_chunk, with_transitions
from imitate.algo.slots.dynamics import Dynamics
from imitate.algo.slots.dynamics import built as dynamics_of
from imitate.algo.slots.exploration import ActionNoise
from imitate.algo.slots.imagination import imagined, with_imagined
from imitate.algo.slots.memory import (
    ACTOR,
    CRITICS,
    RecurrentEncoder,
    ReplayedMemory,
    state_shapes,
)
from imitate.algo.slots.outcomes import Outcomes, outcomes_of
from imitate.algo.slots.prior import Prior
from imitate.algo.slots.reward_source import RewardSource, reward_source_of
from imitate.algo.slots.reward_weights import NETWORK as REWARD_WEIGHTS
from imitate.algo.slots.reward_weights import (
    RewardWeights,
    add_reward_weights,
    added,
    num_values,
    reward_weights_in,
)
from imitate.functional.losses import masked_mean
from imitate.models.actor import Actor
from imitate.models.critics import CriticEnsemble, polyak_update_, target_of
from imitate.models.heads import (
    ActionDistribution,
    ActionHead,
    DeterministicHead,
    GaussianHead,
    GMMHead,
)
from imitate.models.mlp import MLP
from imitate.system.text import DURATION

RLConfigT = TypeVar("RLConfigT", bound=ActorCriticConfig, default=Any)
"""Type of the section of an algorithm with critics."""


class Update:
    """One pass over the losses of an algorithm; each loss trains one network.

    Attributes:
        epoch: counted from 1.
        learn: false in validation, in which losses are computed but nothing is changed.
        losses: scalar losses, by the name of the network that each loss trains.
        info: scalars to log.
    """

    def __init__(self, algo: Algo, epoch: int, learn: bool) -> None:
        self._algo = algo
        self.epoch = epoch
        self.learn = learn
        self.losses: dict[str, Tensor] = {}
        self.info: Info = {}

    def step(self, name: str, loss: tuple[Tensor, Info]) -> None:
        """Record a loss and its info; if the network :meth:`learns`, make a gradient step."""
        value, info = loss
        self.losses[name] = value
        self.info |= info
        if self.learns(name):
            self.info[f"{name.title()}_Grad_Norms"] = self._algo._gradient_step(name, value)

    def learns(self, name: str) -> bool:
        """Return true in training, from the first to the last epoch in which the network's optimizer is active."""
        section = self._algo.config["optim_params"].get(name, {})
        begins, ends = section.get("start_epoch", -1), section.get("end_epoch", -1)
        return self.learn and bool(self.epoch >= begins and (ends == -1 or self.epoch < ends))

    def turn(self, counter: str, every: int, first: bool = False) -> bool:
        """Count an update in ``algo.counters[counter]``; return true every ``every`` updates, and always in validation.

        Args:
            counter: name of the counter in checkpoints.
            every: number of updates per true result.
            first: return true at the first update of each such period instead of at the last.
        """
        if not self.learn:
            return True
        before = self._algo.counters[counter]
        self._algo.counters[counter] = before + 1
        return (before if first else before + 1) % every == 0

    @property
    def loss(self) -> Tensor:
        """Sum of all losses that were recorded in this update."""
        return torch.stack(list(self.losses.values())).sum()


class ActorCritic(Algo[RLConfigT]):
    """Algorithm that learns values from transitions, and an actor from the values.

    Prepared batches have, for the B samples: ``obs``, ``next_obs`` {key: (B, [F,] ...)}, ``goal_obs`` or None,
    ``actions`` (B, A), ``rewards`` (B,) summed over n steps, ``discounts`` (B,) 0 after terminals, ``weight`` (B,) or
    None, and if the section requests them ``next_actions`` (B, A), ``chunk`` (B, n, A) and ``chunk_mask`` (B, n). With
    one value per named reward, ``rewards`` and ``discounts`` are (B, V), and values of critics (E, B, V).
    """

    main_net = "actor"
    targets = {"critic_target": "critic"}
    gives_errors = True

    keeps_errors = False
    """True if prioritized replay needs :attr:`sample_errors`."""
    sample_errors: Tensor | None = None
    """(B,) absolute TD error of each sample in the latest update, for prioritized replay."""

    reward_source: RewardSource | None = None
    """Optional reward source, whose rewards replace the environment's."""

    @property
    def chunk_steps(self) -> int:
        """K, number of actions in the chunks that the critics evaluate; 1 if they evaluate single actions."""
        return int(self.config.n_step) if self.config.values_chunks else 1

    @property
    def execution(self) -> ChunkExecution | None:
        """Execution of whole chunks, if critics evaluate chunks; None for single actions."""
        steps = self.chunk_steps
        return ChunkExecution(steps, steps) if self.config.values_chunks else None

    @property
    def actor(self) -> Actor:
        """The network that acts."""
        return cast(Actor, self.active_nets["actor"])

    # ---- networks ------------------------------------------------------------------------------------------------

    def _create_actor(self, config: ActorConfig) -> Actor:
        """Create an actor: encoder, hidden layers, head."""
        own = self.encoding.own_actor() if self.memory is None else None
        if own is not None:
            features = MLP(own.output_dim, ())
            return Actor(own, features, self._create_head(own.output_dim, config))
        encoder = self._create_encoder() if self.memory is None else self.memory.reader(ACTOR)
        mlp = MLP(encoder.output_dim, config.layer_dims, dropout=config.dropout)
        return Actor(encoder, mlp, self._create_head(mlp.output_dim, config))

    def _create_head(self, input_dim: int, config: ActorConfig) -> ActionHead:
        """Create the actor's head: a distribution if ``algo.actor`` defines one, else a linear map and a tanh."""
        if not isinstance(config, StochasticActorConfig):
            return DeterministicHead(input_dim, self.ac_dim)
        net = config.net
        if net.type == "gmm":
            return GMMHead(input_dim, self.ac_dim, **net.gmm.to_dict(), **net.common.to_dict())
        return GaussianHead(
            input_dim, self.ac_dim, **net.gaussian.to_dict(), **net.common.to_dict()
        )

    def _create_critic(
        self,
        config: CriticConfig,
        *,
        of_states: bool = False,
        num_atoms: int = 0,
        num_choices: int = 0,
        num_actions: int = 1,
    ) -> CriticEnsemble:
        """Create critics of actions, or of chunks of ``num_actions``.

        With ``of_states`` the critics give one value per state, with ``num_choices`` one value per choice. They also
        see the observations of the group ``critic``.

        If ``algo.rnn`` is enabled, the recurrent encoder is part of the critics of actions: it is trained with them,
        and target critics have a copy. Actor and state values use the recurrent features without gradient.
        """
        size, own = 1 if of_states else config.ensemble.n, self.encoding.own
        values = num_values(self.config)
        plain = not (of_states or num_atoms or num_choices or values or config.value_bounds)
        if (
            own.has("critic")
            and plain
            and self.memory is None
            and not self.goal_shapes
            and self.frame_stack == 1
        ):
            return cast(CriticEnsemble, own.critics(size, self.encoding.seen(group="critic")))
        encoders = 1 if config.ensemble.shared_encoder else size
        memory, features = self.memory, ACTOR if of_states else CRITICS
        critic = CriticEnsemble(
            [
                self.encoding.encoder(group="critic") if memory is None else memory.reader(features)
                for _ in range(encoders)
            ],
            0 if of_states else num_actions * self.ac_dim - num_choices,
            config.layer_dims,
            size,
            layer_norm=config.layer_norm,
            num_atoms=num_atoms,
            num_choices=num_choices,
            value_bounds=config.value_bounds,
            num_values=values,
            activation=config.activation,
        )
        if memory is not None and not of_states:
            critic.add_module("memory", memory.encoder(self._create_encoder()))
            self.acting_nets = (*self.acting_nets, "critic")
        return critic

    def _add_targets(self) -> None:
        """Add the target networks as copies of their online networks, which must exist already."""
        for target, online in self.targets.items():
            self.nets[target] = target_of(self.nets.get_submodule(online))

    def _critic(self, name: str) -> CriticEnsemble:
        return cast(CriticEnsemble, self.nets[name])

    # ---- memory --------------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> ReplayedMemory | None:
        """Selects sequences for the recurrent encoder, if ``algo.rnn`` (ReplayedMemoryConfig) is enabled.

        The result is None without ``algo.rnn``.
        """
        rnn = self.config.get("rnn", None)
        if rnn is None or not rnn.enabled:
            return None
        return ReplayedMemory(rnn, self.config.n_step, self.config.discount)

    def recurrent(self, name: str) -> RecurrentEncoder:
        """Return the recurrent encoder of the network ``critic`` or ``critic_target``."""
        return cast(RecurrentEncoder, self.active_nets[name].get_submodule("memory"))

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Shapes of the recurrent state that is stored with each step; None without ``algo.rnn``."""
        return None if self.memory is None else state_shapes(self.recurrent("critic"))

    def _transitions(self, batch: Batch) -> Batch:
        """Return the transitions for the losses: the batch itself, or with ``algo.rnn`` the steps of its sequences."""
        if self.memory is None:
            return batch
        return self.memory.transitions(
            batch, self.recurrent("critic"), self.recurrent("critic_target"), self.action_mask.keys
        )

    # ---- rewards -------------------------------------------------------------------------------------------------

    def _add_slots(self) -> None:
        super()._add_slots()
        add_reward_weights(self.nets, self.config)
        self.random_needs_act = self.memory is not None or self.frame_stack > 1
        model = self.config.get("dynamics", None)
        if model is not None:
            self.nets["dynamics"] = dynamics_of(model, self.obs_shapes, self.ac_dim)
            self.counters["model_updates"] = 0
        self.reward_source = source = reward_source_of(
            self.config, self._create_encoder, self.ac_dim
        )
        if source is not None and source.net is not None:
            self.nets[source.network] = source.net
        prior = self.config.get("prior", None)
        if prior is not None:
            self.nets["prior"] = Prior(prior, self.ac_dim)

    @property
    def prior(self) -> Prior | None:
        """Optional prior policy, towards which the learned policy is regularized."""
        return cast(Prior, self.nets["prior"]) if "prior" in self.nets else None

    @property
    def log_prior(self) -> Callable[[Batch, Tensor], Tensor] | None:
        """Function from observations and actions (B, A) to the log-densities (B,) of the prior, or None."""
        prior = self.prior
        return None if prior is None else partial(prior.log_prob, around=self.preprocess)

    def _rewarded(self, batch: Batch, update: Update) -> Batch:
        """Update the reward source once, then replace the rewards of the batch by rewards of the source."""
        weights = reward_weights_in(self.nets)
        if weights is not None:
            update.step(REWARD_WEIGHTS, weights.loss())
            if self.value_weights is None:
                return {**batch, "rewards": weights.combined(batch["signals"])}
            own = batch["discounts"].unsqueeze(-1)
            return {
                **batch,
                "rewards": torch.cat([batch["signals"], torch.zeros_like(own)], dim=-1),
                "discounts": torch.cat([batch["signal_discounts"], own], dim=-1),
            }
        source = self.reward_source
        if source is not None:
            if source.needs_log_prob:
                batch = {**batch, "policy_log_prob": self._log_prob(batch)}
            loss = source.loss(batch)
            if loss is not None:
                update.step(source.network, loss)
            batch = {**batch, "rewards": source.rewards(batch)}
            update.info["Reward"] = batch["rewards"].mean()
        return batch

    def _with_bonuses(self, batch: Batch, real: Batch, update: Update) -> Batch:
        """Update each auxiliary once, then add the rewards of the auxiliaries to the batch.

        Auxiliaries learn only from the ``real`` transitions, so that imagined states remain novel.
        """
        extrinsic = self.config.get("extrinsic", 1.0)
        if extrinsic != 1.0:
            batch = {**batch, "rewards": extrinsic * batch["rewards"]}
        auxiliaries = self.auxiliaries
        update.info |= learn_auxiliaries(self, real, update.learn)
        for name, auxiliary in auxiliaries.items():
            config = auxiliary.config
            bonus = auxiliary.reward(batch) if config.reward > 0 else None
            if bonus is not None:
                update.info[f"{name}/Reward"] = bonus.mean()
                if not config.reward_on_demos:
                    bonus = bonus * (batch["part"] == 0)
                rewards = self._plus(batch["rewards"], config.reward * bonus)
                batch = {**batch, "rewards": rewards}
        return batch

    @torch.no_grad()
    def _log_prob(self, batch: Batch) -> Tensor:
        """Return the log-density (B,) of the batch's actions under the current policy, which must be a distribution."""
        policy = self._policy(batch["obs"], batch["goal_obs"])
        return policy.log_prob(batch["actions"])

    def _policy(self, obs: Batch, goal: Batch | None) -> ActionDistribution:
        """Return pi(. | s), restricted to the allowed choices if actions are masked."""
        features, _ = self.actor(obs, goal)
        distribution: ActionDistribution = self.actor.head(features)
        return self.action_mask.policy(distribution, obs)

    # ---- model ---------------------------------------------------------------------------------------------------

    @cached_property
    def outcomes(self) -> Outcomes | None:
        """Correction of the learned model's rewards and episode ends, or None if the section requests none."""
        model = cast(Dynamics, self.nets["dynamics"])
        return outcomes_of(self.config, model, lambda: self.preprocess)

    def _with_model(self, batch: Batch, update: Update) -> Batch:
        """Update the learned model once, then add transitions that it imagines to the batch."""
        if "dynamics" not in self.nets:
            return batch
        model, config = cast(Dynamics, self.nets["dynamics"]), self.config["imagination"]
        if update.learn:
            model.follow(batch)
            self.counters["model_updates"] += 1
        update.step("dynamics", model.loss(batch))
        if not update.learn or self.counters["model_updates"] <= config.start_updates:
            return batch
        act = partial(self._decide, goal=None, explore=True, generator=None)
        discount = self.config.discount
        more = imagined(batch, model, act, config, discount, self.outcomes)
        return with_imagined(batch, more)

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the transition at the current step of each window; with ``algo.rnn``, select sequences."""
        if self.memory is not None:
            return self.memory.select(batch, self.recurrent("critic"))
        frames, now = self.frame_stack, self.frame_stack - 1
        steps = slice(0, frames) if frames > 1 else 0
        batch = with_transitions(batch, self, now)
        weight = batch.get("weight")
        selected = {
            "obs": {key: value[:, steps] for key, value in batch["obs"].items()},
            "next_obs": {key: value[:, steps] for key, value in batch["next_obs"].items()},
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, now],
            "rewards": batch["n_step_rewards"],
            "discounts": self._discounts(batch),
            "weight": None if weight is None else weight[:, now],
        }
        # "part" is 0 for samples of the replay buffer and at least 1 for demonstrations. A batch without "part"
        # consists of demonstrations.
        if self.config.auxiliary:
            selected["part"] = batch.get("part", torch.ones_like(selected["discounts"]))
            if weight is not None:
                selected["mask"] = selected["weight"] > 0
        if self.reward_source is not None:
            part = batch.get("part", torch.ones_like(selected["discounts"]))
            selected["expert"] = (part > 0).to(selected["discounts"])
            selected["terminals"] = (selected["discounts"] == 0).to(selected["discounts"])
        if REWARD_WEIGHTS in self.nets:
            selected["signals"] = batch["n_step_signals"]
            selected["signal_discounts"] = batch["signal_discounts"]
        if "dynamics" in self.nets:
            selected["index"] = batch["index"]
        more = ("next_actions", "chunk", "chunk_mask")
        selected |= {key: batch[key] for key in more if key in batch}
        return with_chunk(selected) if self.config.values_chunks else selected

    def _discounts(self, batch: Batch) -> Tensor:
        """Return the discounts (B,), 0 after terminals; an action of several steps is discounted once per step."""
        discounts: Tensor = batch["discounts"]
        if not self.global_config.train.online.repeats:
            return discounts
        last = batch["next_obs"][DURATION][:, -1]
        steps = self.preprocess.unnormalize_obs(DURATION, last)[:, 0].round()
        return discounts * torch.pow(self.config.discount, steps - 1.0)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the sum of all losses."""
        update = Update(self, epoch=1, learn=False)
        real = self._rewarded(self._transitions(batch), update)
        self._update(self._with_bonuses(self._with_model(real, update), real, update), update)
        return update.loss, update.info

    @abstractmethod
    def _update(self, batch: Batch, update: Update) -> None:
        """Compute all losses in their order, train the networks (:meth:`Update.step`) and move the targets."""

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update all networks once, in order; with ``validate`` only compute the losses.

        The logged ``Loss`` is the sum of the losses of this update.
        """
        update = Update(self, epoch, learn=not validate)
        with torch.set_grad_enabled(not validate):
            real = self._rewarded(self._transitions(batch), update)
            batch = self._with_bonuses(self._with_model(real, update), real, update)
            self._update(batch, update)
            if self.sample_errors is not None and "first" in real:
                self.sample_errors = self.sample_errors[real["first"]]
            if validate:
                update.info |= self._validation_info(batch)
            else:
                follow_auxiliaries(self, real)
        info = {**update.info, "Loss": update.loss}
        return {name: value.detach() for name, value in info.items()}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the actor's and the data's actions, in normalized units."""
        features, _ = self.actor(batch["obs"], batch["goal_obs"])
        return {"Action_Error": (self.actor.head.act(features) - batch["actions"]).abs().mean()}

    def _max_grad_norm(self, name: str) -> float | None:
        if name in self.auxiliaries or name in ("dynamics", REWARD_WEIGHTS):
            return super()._max_grad_norm(name)
        section = self.config["actor" if name == "actor" else "critic"]
        own: float | None = section.get("max_gradient_norm", None)
        return super()._max_grad_norm(name) if own is None else own

    def _follow(self, *names: str) -> None:
        """Move the named target networks, by default all, towards their online networks."""
        for target in names or self.targets:
            online = self.nets.get_submodule(self.targets[target])
            polyak_update_(self.nets[target], online, self.config.target_tau)

    # ---- parts of losses -----------------------------------------------------------------------------------------

    @property
    def value_weights(self) -> RewardWeights | None:
        """Weights of the named rewards if critics learn one value per named reward, else None."""
        return reward_weights_in(self.nets) if self.config.value_per_reward else None

    def _plus(self, values: Tensor, more: Tensor) -> Tensor:
        """Add entropy or bonuses (*B,) to values (*B,) or (*B, V)."""
        return values + more if self.value_weights is None else added(values, more)

    def _total(self, values: Tensor) -> Tensor:
        """Return values (*B,) unchanged, or combine values (*B, V) of the named rewards by their weights to (*B,)."""
        return values if self.value_weights is None else self.value_weights.total(values)

    def _distance(self, distances: Tensor) -> Tensor:
        """Return TD errors (B,) unchanged, or sum (B, V) to (B,) by the absolute weights of the named rewards."""
        weights = self.value_weights
        return distances if weights is None else weights.total_distance(distances)

    def _ensemble_value(self, values: Tensor) -> Tensor:
        """Combine the critics' values (E, *B): the smallest and the largest are mixed by ``ensemble.weight``.

        If critics learn one value per named reward, (E, *B, V), the smallest value is the one that adds least to the
        weighted total.
        """
        weight: float = self.config["critic"].ensemble.weight
        if self.value_weights is not None:
            return self.value_weights.pessimistic(values, weight)
        least = values.amin(0)
        return least if weight == 1.0 else weight * least + (1.0 - weight) * values.amax(0)

    def _td_loss(self, values: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        """Return the TD loss: mean over the batch, sum over the critics.

        Values are (E, B) and the target, without gradient, is (B,). With one value per named reward, the shapes are (E,
        B, V) and (B, V).
        """
        huber = self.config["critic"].use_huber
        error = nn.functional.smooth_l1_loss if huber else nn.functional.mse_loss
        errors = error(values, target.expand_as(values), reduction="none")
        if self.value_weights is not None:
            errors = errors.sum(-1)
        if self.keeps_errors:
            self.sample_errors = self._distance((values.detach() - target).abs().mean(0))
        return masked_mean(errors.sum(0), weight)

    def _policy_actions(self, batch: Batch) -> Tensor:
        """Return the actor's mean actions (B, A) in the batch's states, with gradient."""
        return _mean_actions(self.actor, batch["obs"], batch["goal_obs"])

    def _target_actions(self, batch: Batch) -> Tensor:
        """Return the target actor's mean actions (B, A) in the next states."""
        target = cast(Actor, self.nets["actor_target"])
        return _mean_actions(target, batch["next_obs"], batch["goal_obs"])

    # ---- test time -----------------------------------------------------------------------------------------------

    @cached_property
    def exploration(self) -> ActionNoise | None:
        """Exploration noise of a deterministic actor, if the section has ``exploration``; else None."""
        config = self.config.get("exploration", None)
        return None if config is None else ActionNoise(config)

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        state: InnerState = {}
        if self.exploration is not None:
            state |= self.exploration.initial_state(batch_size, self.ac_dim, self.device)
        if self.memory is not None:
            state |= self.memory.initial_state(self.recurrent("critic").rnn, batch_size)
        return state | no_plan(self.execution, batch_size, self.ac_dim, self.device)

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Return the actions (B, A) before exploration noise, or chunks (B, K, A) if the critics evaluate chunks."""
        features, _ = self.actor(obs, goal)
        return self.actor.head.act(features, explore, generator)

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        execution = self.execution
        if execution is not None:

            def predict(inputs: Inputs) -> Tensor:
                return self._decide(inputs["obs"], inputs["goal"], explore, generator)

            inputs: Inputs = {"obs": obs, "goal": goal}
            action, chunk, extras = execution.step(state["chunk"], inputs, predict)
            return PolicyStep(action, {**state, "chunk": chunk}, extras)
        extras = {}
        mask = self.action_mask.to_act(obs)
        if self.memory is not None:
            net = self.recurrent("critic")
            features, state, extras = self.memory.step(
                net.encoder, net.rnn, obs, state, goal, explore=explore
            )
            obs = {ACTOR: features}
        if mask is None:
            action = self._decide(obs, goal, explore, generator)
        else:
            policy = self.actor.head(self.actor(obs, goal)[0]).restricted(mask)
            action = policy.sample(generator) if explore else policy.mean
        if explore and self.exploration is not None:
            action, noise = self.exploration.add_to(action, state, generator)
            state = {**state, "noise": noise}
        return PolicyStep(action, state, extras)


def _mean_actions(actor: Actor, obs: Batch, goal: Batch | None) -> Tensor:
    features, _ = actor(obs, goal)
    distribution: ActionDistribution = actor.head(features)
    return distribution.mean
