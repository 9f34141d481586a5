"""Base class of algorithms that learn from whole rollouts of their current policy: networks, batches, acting.

A subclass defines the loss of one minibatch (:meth:`Algo._loss`). Prepared batches, all (B, ...):

    obs             {key: (B, [F,] ...)}
    actions         (B, A) as the policy gave them, normalized, not yet clipped to the environment's limits
    log_prob        log-density of these actions when they were taken
    advantages      generalized advantages, computed once per rollout
    returns         advantages + values, the targets of the value; with S named rewards (B, S + 1), the last of
                    auxiliaries
    values          values of the network before the rollout's first update; with named rewards (B, S + 1)

With a reward source or auxiliaries, batches also have

    next_obs        {key: (B, [F,] ...)}
    executed        (B, A) actions as the environment took them, normalized
    terminals       (B,) 1 or 0
    expert          transitions of demonstrations (``obs``, ``next_obs``, ``actions``, ``terminals``), in minibatches
                    from which the reward source learns
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import TypeVar

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.on_policy_sections import OnPolicyConfig
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.rows import by_parts, join_rows, num_rows, select_rows, stacked_frames
from imitate.algo.slots.entropy_rule import NETWORK as ENTROPY_RULE
from imitate.algo.slots.entropy_rule import EntropyRule
from imitate.algo.slots.memory import RolloutMemory, one_step
from imitate.algo.slots.reward_source import RewardSource, reward_source_of
from imitate.algo.slots.reward_weights import NETWORK as REWARD_WEIGHTS
from imitate.algo.slots.reward_weights import (
    add_reward_weights,
    num_values,
    reward_weights_in,
)
from imitate.algo.slots.trust_region import TrustRegion
from imitate.functional.policy_gradient import generalized_advantages
from imitate.models.actor import GroupEncoder, Obs, PolicyAndValue, StochasticPolicy
from imitate.models.categorical import restricted
from imitate.models.moments import PopArt
from imitate.models.rnn import RNNState
from imitate.system.ranks import ALONE

Rewards = NDArray[np.float32]


OnPolicyConfigT = TypeVar("OnPolicyConfigT", bound=OnPolicyConfig, default=Any)
"""Type of the section of an algorithm that learns from whole rollouts."""


class OnPolicy(Algo[OnPolicyConfigT]):
    """Algorithm that learns from rollouts of its current policy and then discards them."""

    experience = "rollout"
    _OF_STEPS: ClassVar = ("actions", "log_prob", "advantages", "returns", "values")

    takes_old: ClassVar = False
    """True if the algorithm may learn from rollouts of earlier weights, see ``train.online.max_staleness``."""

    reward_source: RewardSource | None = None
    """Optional reward source, whose rewards replace the environment's."""

    @cached_property
    def kept(self) -> list[Batch]:
        """Parts of rollouts, as tensors, that :meth:`after_rollout` keeps; saved for an exact resume."""
        return []

    def _create_networks(self) -> None:
        config, encoder = self.config, self._create_encoder()
        rnn = None if self.memory is None else config.rnn.make(encoder.output_dim)
        net = PolicyAndValue(
            encoder,
            self.ac_dim,
            config.num_choices or 0,
            rnn,
            num_values=num_values(config),
            popart=config.popart,
            more=self._create_more(),
            **config.net.to_dict(),
        )
        self.nets = nn.ModuleDict({"policy": net})

    def _create_more(self) -> GroupEncoder | None:
        """Create an encoder of the group ``critic``, which the value alone sees; None if that group is empty."""
        if not self.encoding.shapes("critic"):
            return None
        return GroupEncoder(self.encoding.of("critic"), frames=self.frame_stack)

    @cached_property
    def memory(self) -> RolloutMemory | None:
        """Cuts rollouts into sequences for the recurrent network; None unless ``algo.rnn`` is enabled."""
        rnn = self.config.rnn
        return RolloutMemory(rnn, self.global_config.train.seq_length) if rnn.enabled else None

    def _add_slots(self) -> None:
        super()._add_slots()
        add_reward_weights(self.nets, self.config)
        self.reward_source = source = reward_source_of(
            self.config, self._create_encoder, self.ac_dim
        )
        if source is not None and source.net is not None:
            self.nets[source.network] = source.net
        config, choices = self.config.entropy, self.config.num_choices
        if config.rule != "fixed":
            usual = 0.5 * math.log(choices) if choices else -float(self.ac_dim)
            target = usual if config.target is None else config.target
            self.nets[ENTROPY_RULE] = EntropyRule(config, target)

    @property
    def entropy_rule(self) -> EntropyRule | None:
        """Rule that adapts the weight of the entropy; None if the weight is always ``entropy_weight``."""
        return cast(EntropyRule, self.nets[ENTROPY_RULE]) if ENTROPY_RULE in self.nets else None

    @property
    def net(self) -> PolicyAndValue:
        """Network of the policy and its value."""
        return cast(PolicyAndValue, self.active_nets["policy"])

    # ---- rewards -------------------------------------------------------------------------------------------------

    @property
    def expert_passes(self) -> int:
        """Number of first passes over a rollout whose minibatches contain demonstrations under ``expert``."""
        return 0 if self.reward_source is None else self.reward_source.passes

    @torch.no_grad()
    def rollout_rewards(self, rollout: Batch) -> Rewards:
        """Return the rewards (T, N) of a raw rollout, see :meth:`prepare_rollout`.

        The rewards are those of the environment times ``extrinsic``, or of the reward source, plus those of
        auxiliaries. With S named rewards the result is (T, N, S + 1); the last column contains the rewards of
        auxiliaries.
        """
        source, rewards = self.reward_source, cast(Rewards, rollout["rewards"])
        bonuses = np.zeros_like(rewards)
        giving = [aux for aux in self.auxiliaries.values() if aux.config.reward > 0]
        batch = self._transitions(rollout) if source is not None or giving else {}
        if source is None:
            rewards = rewards * np.float32(self.config.extrinsic)
        else:
            own = {**batch, "expert": torch.zeros_like(batch["terminals"])}
            found = by_parts(lambda part: source.rewards(self._for_source(part)), own)
            rewards = _like_rollout(found, rewards)
        for auxiliary in giving:
            bonus = by_parts(auxiliary.reward, batch)
            if bonus is not None:
                bonuses = bonuses + _like_rollout(auxiliary.config.reward * bonus, rewards)
        if reward_weights_in(self.nets) is None:
            return rewards + bonuses
        return np.concatenate([rollout["signals"], bonuses[..., None]], axis=-1)

    def _transitions(self, rollout: Batch) -> Batch:
        """Return the steps of a raw rollout, (T N, ...): obs, next_obs, terminals and executed actions."""
        obs = {k: v.reshape(-1, *v.shape[2:]) for k, v in rollout["obs"].items()}
        num_envs = rollout["terminals"].shape[1]
        after = {key: np.concatenate([x[num_envs:], x[:num_envs]]) for key, x in obs.items()}
        for key, value in rollout["end_obs"].items():
            after[key][rollout["end_rows"]] = value
        actions = torch.from_numpy(rollout["actions"].reshape(rollout["mask"].size, -1))
        terminals = torch.from_numpy(rollout["terminals"].reshape(-1).astype(np.float32))
        keys = tuple(self.encoding.in_batches["obs"])
        return {
            "obs": self.preprocess.prepare_obs(obs, keys),
            "next_obs": self.preprocess.prepare_obs(after, keys),
            "actions": self.preprocess.normalize_actions(actions.float().to(self.device)),
            "terminals": terminals.to(self.device),
        }

    def _for_source(self, transitions: Batch) -> Batch:
        """Add ``policy_log_prob`` (B,) to transitions if the reward source needs it."""
        if self.reward_source is None or not self.reward_source.needs_log_prob:
            return transitions
        with torch.no_grad():
            obs = transitions["obs"]
            policy = self.action_mask.policy(self.net.actor(obs), obs)
            return {**transitions, "policy_log_prob": policy.log_prob(transitions["actions"])}

    # ---- rollouts ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare_rollout(self, rollout: Batch) -> Batch:
        """Prepare a raw rollout, which is then split into minibatches.

        Args:
            rollout: raw values of T steps of N environments as numpy arrays (T, N, ...): ``obs`` by key, ``rewards``
                as :meth:`rollout_rewards` returns them, ``terminals``, ``timeouts``, ``mask`` (false at steps that
                are not learned from), ``extras`` of the policy's steps, and ``end_obs`` (M, ...) by key: the
                observations after the ``end_rows`` (M,), the rows t N + n of timeouts and last steps.

        Returns:
            tensors (B, ...) of the B steps where ``mask`` is true.
        """
        config = self.config
        obs = {k: torch.from_numpy(v.reshape(-1, *v.shape[2:])) for k, v in rollout["obs"].items()}
        keys = tuple(self.encoding.in_batches["obs"])
        prepared = self.preprocess.prepare_obs(obs, keys)
        end_obs = self.preprocess.prepare_obs(rollout["end_obs"], keys)
        mask = rollout["mask"]
        if self.frame_stack > 1:
            stacked = stacked_frames(prepared, end_obs, rollout, self.frame_stack)
            (prepared, end_obs), mask = stacked[:2], mask & stacked[2]
        now, at_ends = (
            value.float().cpu().numpy()
            for value in self._rollout_values(rollout, prepared, end_obs)
        )
        values = now.reshape(rollout["rewards"].shape)
        next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
        next_values.reshape(now.shape)[rollout["end_rows"]] = at_ends
        each, returns = self._advantages_of(rollout, prepared, values, next_values)
        weights = reward_weights_in(self.nets)
        total = (
            weights.total(torch.from_numpy(each).to(self.device)) if weights is not None else None
        )
        of_steps = {
            "actions": rollout["policy_action"],
            "log_prob": rollout["log_prob"],
            "advantages": each if total is None else total.cpu().numpy(),
            "returns": returns,
            "values": values,
        }
        batch: Batch = {
            name: torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self.device)
            for name, x in of_steps.items()
        }
        batch["obs"] = prepared
        if self.auxiliaries or self.reward_source is not None:
            transitions = self._transitions(rollout)
            batch["executed"] = transitions["actions"]
            batch |= {name: transitions[name] for name in ("next_obs", "terminals")}
        if self.memory is not None:
            batch |= self.memory.of_rollout(rollout, self.device)
        if not mask.all():
            batch = select_rows(batch, torch.from_numpy(np.flatnonzero(mask)).to(self.device))
        if config.popart is not None:
            self._normalize_values(batch["returns"])
        return batch

    def _normalize_values(self, returns: Tensor) -> None:
        """Update the PopArt statistics of the value head with the returns (B,) or (B, V) of all ranks."""
        each = returns.reshape(len(returns), -1).double()
        sums = [float(len(each)), *each.sum(0).tolist(), *each.square().sum(0).tolist()]
        total = self.ranks.table(sums).sum(0)
        if total[0]:
            mean, square = torch.from_numpy(total[1:] / total[0]).to(returns).chunk(2)
            cast(PopArt, self.net.value_head).observe(mean, square)

    def _mean_error(self, errors: Tensor) -> Tensor:
        """Return the mean of squared value errors (B,) or (B, V); with PopArt, in units of normalized returns."""
        if self.config.popart is not None:
            errors = errors / cast(PopArt, self.net.value_head).std.square()
        return errors.mean()

    @property
    def prepares_each_pass(self) -> bool:
        """True if each pass over a rollout first recomputes advantages and returns with the current networks."""
        return False

    def _advantages_of(
        self, rollout: Batch, obs: Obs, values: Rewards, next_values: Rewards
    ) -> tuple[Rewards, Rewards]:
        """Return the generalized advantages of a rollout, and its returns, in the shape of its rewards.

        Args:
            rollout: raw rollout, see :meth:`prepare_rollout`.
            obs: prepared observations of the rollout (T N, ...).
            values: values of the states, in the shape of the rewards.
            next_values: values of the states after the steps.
        """
        config, weights, trace = self.config, reward_weights_in(self.nets), self._trace(rollout)
        ends = rollout["terminals"], rollout["timeouts"]
        rewards = rollout["rewards"]
        if weights is None:
            each = generalized_advantages(
                rewards, values, next_values, *ends, config.discount, trace
            )
            return each, each + values
        discounts = [config.discount if own is None else own for own in (*weights.discounts, None)]
        columns = [
            generalized_advantages(
                rewards[..., k], values[..., k], next_values[..., k], *ends, discount, trace
            )
            for k, discount in enumerate(discounts)
        ]
        each = np.stack(columns, axis=-1)
        return each, each + values

    def _trace(self, rollout: Batch) -> float | Rewards:
        """Return lambda of the generalized advantages: one number, or one for each step (T, N)."""
        return self.config.trace

    def _rollout_values(self, rollout: Batch, obs: Obs, end_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return the values of all T N steps of a rollout, and of the observations after its ``end_rows``."""
        if self.memory is None:
            return self._values(obs), self._values(end_obs)
        # advance the recurrent network by one step from each stored state, and by a second step at the end rows
        stored = self.memory.stored(rollout, self.device)
        rows = torch.from_numpy(rollout["end_rows"]).to(self.device)
        _, after = self._one_step(select_rows(obs, rows), select_rows(stored, rows))
        return self._values(obs, stored), self._values(end_obs, after)

    def _values(self, obs: Obs, memory: RNNState | None = None) -> Tensor:
        """Return the values (B,) of observations (B, ...) and, with ``algo.rnn``, of recurrent states (B, L, H)."""

        def values(part: Batch) -> Tensor:
            features = (
                self.net.encoder(part["obs"])
                if memory is None
                else self._one_step(part["obs"], part["memory"])[0]
            )
            return self.net.values_of(features, part["obs"])

        found = by_parts(values, {"obs": obs} if memory is None else {"obs": obs, "memory": memory})
        return cast(Tensor, found)

    def _one_step(self, obs: Obs, state: RNNState) -> tuple[Tensor, RNNState]:
        """Return recurrent features (B, H) of observations (B, ...), given recurrent states, and the next states."""
        assert self.net.memory is not None
        return one_step(self.net.encoder, self.net.memory, obs, state)

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Batch]:
        """Yield minibatches of about ``batch_size`` steps: one pass over a prepared rollout in random order.

        With a memory, minibatches consist of whole sequences.
        """
        if self.memory is not None:
            for rows in self.memory.minibatches(batch, batch_size):
                yield select_rows(batch, rows)
            return
        size = len(batch["log_prob"])
        shuffled = select_rows(batch, torch.randperm(size).to(self.device))
        # minibatches of nearly equal size, because a tiny last minibatch would make a noisy update
        parts = max(1, round(size / batch_size))
        edges = [size * part // parts for part in range(parts + 1)]
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            yield select_rows(shuffled, slice(start, stop))

    def after_rollout(self, rollout: Batch, batch: Batch, batch_size: int) -> Iterator[Batch]:
        """Yield further minibatches after the passes over a rollout; none by default.

        Args:
            rollout: raw rollout, see :meth:`prepare_rollout`.
            batch: the prepared rollout.
            batch_size: number of samples of a minibatch.
        """
        yield from ()

    # ---- batches of a dataset ------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the current step of each window, with stacked frames; with ``algo.rnn``, all steps as sequences.

        Demonstrations for a reward source, which have no ``log_prob``, become transitions. A minibatch from a dataset
        also contains its own steps under ``expert``.
        """
        if self.memory is not None:
            return self._select_sequences(batch, self.memory)
        slots = self.auxiliaries or self.reward_source is not None
        groups = ("obs", "next_obs") if slots else ("obs",)
        now = self.frame_stack - 1
        frames = slice(0, self.frame_stack) if now else 0
        seen = {group: {key: x[:, frames] for key, x in batch[group].items()} for group in groups}
        if self.reward_source is None:
            return {**seen, **{name: batch[name][:, now] for name in self._OF_STEPS}}
        actions, terminals = batch["actions"][:, 0], batch["dones"][:, 0]
        shown = {**seen, "actions": actions, "terminals": terminals}
        if "log_prob" not in batch:
            return shown
        steps = {name: batch[name][:, 0] for name in self._OF_STEPS}
        return {**shown, **steps, "executed": actions, "expert": shown}

    def _select_sequences(self, batch: Batch, memory: RolloutMemory) -> Batch:
        """Convert windows to sequences that begin with an empty memory; padded steps are left out."""
        assert self.net.memory is not None
        count, steps = batch["log_prob"].shape
        flat = {name: batch[name].flatten(0, 1) for name in self._OF_STEPS}
        flat["obs"] = {key: value.flatten(0, 1) for key, value in batch["obs"].items()}
        flat |= memory.of_windows(count, steps, self.net.memory)
        return select_rows(flat, batch["pad_mask"].flatten()) if "pad_mask" in batch else flat

    # ---- update --------------------------------------------------------------------------------------------------

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update policy and value once, then the networks of the slots; with ``validate`` only compute the losses."""
        region = None if validate else self._trust_region(batch)
        info = super().train_on_batch(batch, epoch, validate)
        if region is not None:
            change, shortened = region.shrink()
            info |= {"Policy_Change": torch.tensor(change), "Shortened": torch.tensor(shortened)}
        rule = self.entropy_rule
        if rule is not None and not validate and "Entropy" in info:
            rule.follow(self._of_ranks(info["Entropy"]))
            info |= {"Entropy_Weight": rule.weight}
        weights = reward_weights_in(self.nets)
        if weights is not None:
            with torch.set_grad_enabled(not validate):
                loss, scalars = weights.loss()
            if not validate:
                self._gradient_step(REWARD_WEIGHTS, loss)
            info |= scalars
        if self.reward_source is not None and "expert" in batch:
            info |= self._train_source(self.reward_source, batch, validate)
        return info

    def _trust_region(self, batch: Batch) -> TrustRegion | None:
        """Return the limit on the policy change by an update on this minibatch; None unless ``trust_region`` is set."""
        limit = self.config.trust_region
        if limit is None:
            return None
        return TrustRegion(self.net, lambda: self._decide(batch)[0], self.ac_dim, limit, self.ranks)

    def _of_ranks(self, value: Tensor) -> Tensor:
        """Return the mean of a number () over the ranks."""
        if self.ranks.world == 1:
            return value
        return value.new_tensor(self.ranks.total(float(value)) / self.ranks.world)

    def _train_source(self, source: RewardSource, batch: Batch, validate: bool) -> Info:
        """Update the reward source once, with demonstrations and the steps of the minibatch."""
        shown, names = batch["expert"], ("obs", "next_obs", "terminals")
        own = {**{name: batch[name] for name in names}, "actions": batch["executed"]}
        both = join_rows(shown, own)
        is_expert = torch.arange(len(both["actions"]), device=self.device) < num_rows(shown)
        both["expert"] = is_expert.to(both["terminals"])
        with torch.set_grad_enabled(not validate):
            outcome = source.loss(self._for_source(both))
        if outcome is None:
            return {}
        loss, info = outcome
        if not validate:
            info[f"{source.network.title()}_Grad_Norms"] = self._gradient_step(source.network, loss)
        return {name: value.detach() for name, value in info.items()}

    def _decide(self, batch: Batch) -> tuple[StochasticPolicy, Tensor]:
        """Return the current policy's distribution and values (B,) in a minibatch's states."""
        net = self.net
        if self.memory is None:
            features = net.encoder(batch["obs"])
        else:
            assert net.memory is not None
            features = self.memory.features(net.encoder, net.memory, batch)
        policy, values = net.decide(features, batch["obs"])
        return self.action_mask.policy(policy, batch["obs"]), values

    def _advantages(self, batch: Batch) -> Tensor:
        """Return advantages (B,), normalized over the minibatches of all ranks if ``normalize_advantages`` is set."""
        advantages: Tensor = batch["advantages"]
        is_single = len(advantages) < 2 and self.ranks.world == 1
        if not self.config.normalize_advantages or is_single:
            return advantages
        # validation, which has no gradients, runs on rank 0 alone and must not wait for other ranks
        ranks = self.ranks if torch.is_grad_enabled() else ALONE
        mean, std = ranks.mean_and_std(advantages)
        return (advantages - mean) / (std + 1e-8)

    def _with_entropy(self, loss: Tensor, policy: StochasticPolicy) -> tuple[Tensor, Tensor]:
        """Return ``loss - weight E[H]`` and the mean entropy; the weight is ``entropy_weight``, or set by the rule.

        The gradient of the entropy is computed only if the weight is not 0.
        """
        rule = self.entropy_rule
        weight = self.config.entropy_weight if rule is None else rule.weight
        if rule is not None or weight:
            entropy = policy.entropy().mean()
            return loss - weight * entropy, entropy
        with torch.no_grad():
            return loss, policy.entropy().mean()

    def leaves_rollout(self, info: Info) -> bool:
        """Return true if the KL divergence from the policy that collected the rollout exceeds 1.5 ``target_kl``."""
        target = self.config.get("target_kl")
        if target is None:
            return False
        divergence = self.ranks.total(float(info["KL"])) / self.ranks.world
        return bool(divergence > 1.5 * target)

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        state = super()._initial_policy_state(batch_size)
        if self.memory is not None:
            assert self.net.memory is not None
            state |= self.memory.initial_state(self.net.memory, batch_size)
        return state

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        net = self.net
        extras: dict[str, Tensor] = {}
        if self.memory is None:
            features = net.encoder(obs, goal)
        else:
            assert net.memory is not None
            features, state, extras = self.memory.step(
                net.encoder, net.memory, obs, state, goal, explore=explore
            )
        policy = restricted(net.policy_of(features), self.action_mask.to_act(obs))
        if not explore:
            return PolicyStep(policy.mean, state, {})
        action = policy.sample(generator)
        drawn = {"policy_action": action, "log_prob": policy.log_prob(action)}
        return PolicyStep(action, state, {**drawn, **extras})


def _like_rollout(values: Tensor | None, rewards: Rewards) -> Rewards:
    """Reshape values (T N,) to an array (T, N)."""
    assert values is not None
    return cast(Rewards, values.float().cpu().numpy().reshape(rewards.shape))
