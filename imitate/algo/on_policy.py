"""What algorithms share that learn from whole rollouts of their present policy: networks, preparation, acting.

A subclass has the loss of one minibatch (:meth:`Algo._loss`). Batches that it sees, all (B, ...):

    obs             {key: (B, [F,] ...)}
    actions         (B, A) as the policy gave them, normalized, not yet clipped to the environment's limits
    log_prob        of these actions, when they were taken
    advantages      generalized advantages, worked out once per rollout
    returns         advantages + values, which the value learns
    values          what the value said when the rollout began to be learned from
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.policy_state import PolicyState
from imitate.algo.recurrence import MemoryConfig
from imitate.algo.rl_sections import StagedOptimizerConfig, optimizer, wants_practice
from imitate.algo.sections import LayerDims
from imitate.auxiliary.auxiliary import AuxiliariesConfig
from imitate.config import AlgoSection, BaseConfig, Section
from imitate.functional.advantages import generalized_advantages
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import Categorical, CategoricalHead
from imitate.models.heads import Gaussian, GaussianHead
from imitate.models.mlp import MLP, FullPrecisionLinear

CHUNK = 4096
"""Number of states that are evaluated at a time."""
_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}

StochasticPolicy = Gaussian | Categorical


class OnPolicyOptimParams(Section):
    """The optimizer of policy and value together."""

    policy: StagedOptimizerConfig = Field(optimizer(3e-4))


class OnPolicyNetConfig(Section):
    """Networks of the policy and of its value, apart from each other but for the encoder of images."""

    layer_dims: LayerDims = Field((64, 64), description="hidden layers, of each")
    activation: Literal["tanh", "relu"] = Field("tanh", description="after each hidden layer")
    init_std: float = Field(
        1.0, gt=0, description="standard deviation at the start; one for all states"
    )
    orthogonal_init: bool = Field(True, description="begin with orthogonal weights")


class OnPolicyConfig(AlgoSection):
    """What each algorithm that learns from whole rollouts has; base of its section."""

    may_remember: ClassVar[bool] = True
    """Whether there is a recurrent form."""

    optim_params: OnPolicyOptimParams = Field(OnPolicyOptimParams())
    num_choices: int | None = Field(
        None,
        ge=0,
        description="choices of a discrete action; 0: continuous; null: as the environment says",
    )
    net: OnPolicyNetConfig = Field(OnPolicyNetConfig())
    rnn: MemoryConfig = Field(MemoryConfig())
    discount: float = Field(0.99, ge=0, le=1, description="of a reward one step later")
    trace: float = Field(
        0.95, ge=0, le=1, description="lambda of the advantages: 0 one step, 1 the whole return"
    )
    rollout_epochs: int = Field(1, ge=1, description="passes over each rollout")
    value_weight: float = Field(0.5, ge=0, description="weight of the value's loss")
    entropy_weight: float = Field(0.0, ge=0, description="weight of the policy's entropy")
    normalize_advantages: bool = Field(
        True, description="advantages of a minibatch get mean 0 and standard deviation 1"
    )
    auxiliary: AuxiliariesConfig = Field(
        AuxiliariesConfig(), description="auxiliary losses and intrinsic rewards by name"
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained."""
        online = config.train.online
        problems = self.rnn.problems(config) + wants_practice(config)
        if self.rnn.enabled and self.auxiliary:
            problems.append(
                "algo.auxiliary learns from shuffled steps, but algo.rnn.enabled makes minibatches of sequences: set "
                "one of them off"
            )
        if self.rnn.enabled and not self.may_remember:
            problems.append(
                f"algo.rnn.enabled is true, but {config.algo_name} has no recurrent form: ppo and a2c have one"
            )
        if self.rnn.enabled and config.train.seq_length > online.collect_steps:
            problems.append(
                f"train.seq_length is {config.train.seq_length}, but a rollout has train.online.collect_steps "
                f"{online.collect_steps} steps of each environment: raise that, or lower train.seq_length"
            )
        return problems


class PolicyAndValue(nn.Module):
    """Policy and value, each with its own hidden layers, over one encoder."""

    def __init__(
        self,
        encoder: GroupEncoder,
        ac_dim: int,
        config: OnPolicyNetConfig,
        num_choices: int,
        input_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        activation = _ACTIVATIONS[config.activation]
        width = encoder.output_dim if input_dim is None else input_dim
        self.policy = MLP(width, config.layer_dims, activation)
        self.value = MLP(width, config.layer_dims, activation)
        width = self.policy.output_dim
        self.head: CategoricalHead | GaussianHead = (
            CategoricalHead(width, ac_dim)
            if num_choices
            else GaussianHead(width, ac_dim, init_std=config.init_std, state_independent_std=True)
        )
        self.value_head = FullPrecisionLinear(width, 1)
        if config.orthogonal_init:
            self._orthogonal()

    def _orthogonal(self) -> None:
        gain = math.sqrt(2.0)
        scales: list[tuple[nn.Module, float]] = [
            (layer, gain) for mlp in (self.policy, self.value) for layer in mlp.layers
        ]
        last = self.head.logits if isinstance(self.head, CategoricalHead) else self.head.mean
        for layer, scale in [*scales, (last, 0.01), (self.value_head, 1.0)]:
            nn.init.orthogonal_(cast(Tensor, layer.weight), scale)
            nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[StochasticPolicy, Tensor]:
        """The policy's distribution and the value (B,)."""
        return self.decide(self.encoder(obs, goal))

    def decide(self, features: Tensor) -> tuple[StochasticPolicy, Tensor]:
        """The policy's distribution and the value (B,), from features (B, D)."""
        return self.policy_of(features), self.values_of(features)

    def policy_of(self, features: Tensor) -> StochasticPolicy:
        """The policy's distribution."""
        return cast(StochasticPolicy, self.head(self.policy(features)))

    def values_of(self, features: Tensor) -> Tensor:
        """(B,)."""
        value: Tensor = self.value_head(self.value(features))
        return value.squeeze(-1)

    def actor(self, obs: Obs, goal: Obs | None = None) -> StochasticPolicy:
        """The policy's distribution."""
        return self.policy_of(self.encoder(obs, goal))


class OnPolicy(Algo):
    """Learns from rollouts, each of which is then forgotten."""

    experience = "rollout"
    _OF_STEPS: ClassVar = ("actions", "log_prob", "advantages", "returns", "values")

    def _create_networks(self) -> None:
        config = self.algo_config
        net = PolicyAndValue(
            self._create_encoder(), self.ac_dim, config.net, config.num_choices or 0
        )
        self.nets = nn.ModuleDict({"policy": net})

    @property
    def net(self) -> PolicyAndValue:
        """Policy and value."""
        return cast(PolicyAndValue, self.active_nets["policy"])

    # ---- rollouts ------------------------------------------------------------------------------------------------

    @property
    def expert_passes(self) -> int:
        """Passes over a rollout, the first ones, whose minibatches have demonstrations under ``expert``."""
        return 0

    @torch.no_grad()
    def rollout_rewards(self, rollout: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(T, N) rewards of a raw rollout, see :meth:`prepare_rollout`: the environment's and those of auxiliaries."""
        rewards: np.ndarray[Any, np.dtype[np.float32]] = rollout["rewards"]
        giving = {name: aux for name, aux in self.auxiliaries.items() if aux.config.reward > 0}
        if not giving:
            return rewards
        batch = self._transitions(rollout)
        for auxiliary in giving.values():
            bonus = by_parts(batch, auxiliary.reward)
            if bonus is not None:
                bonus = auxiliary.config.reward * bonus
                rewards = rewards + bonus.float().cpu().numpy().reshape(rewards.shape)
        return rewards

    def _transitions(self, rollout: Batch) -> Batch:
        """All steps of a raw rollout, (T N, ...): obs, next_obs, terminals and ``executed``, the actions as taken."""
        obs = {k: v.reshape(-1, *v.shape[2:]) for k, v in rollout["obs"].items()}
        lanes = rollout["terminals"].shape[1]
        after = {key: np.concatenate([x[lanes:], x[:lanes]]) for key, x in obs.items()}
        for key, value in rollout["end_obs"].items():
            after[key][rollout["end_rows"]] = value
        actions = torch.from_numpy(rollout["actions"].reshape(len(rollout["mask"].ravel()), -1))
        terminals = torch.from_numpy(rollout["terminals"].reshape(-1).astype(np.float32))
        keys = tuple(self.obs_shapes)
        return {
            "obs": self.preprocess.prepare_obs(obs, keys),
            "next_obs": self.preprocess.prepare_obs(after, keys),
            "executed": self.preprocess.normalize_actions(actions.float().to(self.device)),
            "terminals": terminals.to(self.device),
        }

    @torch.no_grad()
    def prepare_rollout(self, rollout: Batch) -> Batch:
        """Everything that minibatches are cut from.

        Args:
            rollout: raw values of T steps of N environments as numpy arrays (T, N, ...): ``obs`` by key, ``rewards``,
                ``terminals``, ``timeouts``, ``mask`` (false: no experience), what ``extras`` gave, and ``end_obs``
                (M, ...) by key: what was seen after the ``end_rows`` (M,), the rows t N + n of timeouts and last steps.

        Returns:
            tensors (B, ...) of the B steps that are experience.
        """
        obs = {k: torch.from_numpy(v.reshape(-1, *v.shape[2:])) for k, v in rollout["obs"].items()}
        prepared = self.preprocess.prepare_obs(obs, tuple(self.obs_shapes))
        end_obs = self.preprocess.prepare_obs(rollout["end_obs"], tuple(self.obs_shapes))
        now, at_ends = (
            value.float().cpu().numpy()
            for value in self._rollout_values(rollout, prepared, end_obs)
        )
        values = now.reshape(rollout["rewards"].shape)
        next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
        next_values.reshape(-1)[rollout["end_rows"]] = at_ends
        advantages = generalized_advantages(
            rollout["rewards"],
            values,
            next_values,
            rollout["terminals"],
            rollout["timeouts"],
            self.algo_config.discount,
            self.algo_config.trace,
        )
        flat = {
            "actions": rollout["policy_action"],
            "log_prob": rollout["log_prob"],
            "advantages": advantages,
            "returns": advantages + values,
            "values": values,
        }
        batch: Batch = {
            name: torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self.device)
            for name, x in flat.items()
        }
        batch["obs"] = prepared
        mask = rollout["mask"].reshape(-1)
        if self.auxiliaries:
            batch["next_obs"] = self._transitions(rollout)["next_obs"]
        if not mask.all():
            kept = torch.from_numpy(np.flatnonzero(mask)).to(self.device)
            batch = select_rows(batch, kept)
        return batch

    def _rollout_values(self, rollout: Batch, obs: Obs, end_obs: Obs) -> tuple[Tensor, Tensor]:
        """Values of all T N steps of a rollout, and of what was seen after its ``end_rows``."""
        return self._values(obs), self._values(end_obs)

    def _values(self, obs: Obs) -> Tensor:
        count = len(next(iter(obs.values())))
        parts = [select_rows(obs, slice(i, i + CHUNK)) for i in range(0, count, CHUNK)]
        return torch.cat([self.net.values_of(self.net.encoder(part)) for part in parts])

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Batch]:
        """One pass over a prepared rollout: all steps in random order, about ``batch_size`` at a time."""
        size = len(batch["log_prob"])
        shuffled = select_rows(batch, torch.randperm(size).to(self.device))
        # A last part that is tiny would be a noisy step.
        parts = max(1, round(size / batch_size))
        edges = [size * part // parts for part in range(parts + 1)]
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            yield select_rows(shuffled, slice(start, stop))

    def _select_batch(self, batch: Batch) -> Batch:
        """The first step of each window, for batches that come from a dataset."""
        groups = ("obs", "next_obs") if self.auxiliaries else ("obs",)
        return {
            **{
                group: {key: value[:, 0] for key, value in batch[group].items()} for group in groups
            },
            **{name: batch[name][:, 0] for name in self._OF_STEPS},
        }

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """One update of policy and value, then of each auxiliary."""
        info = super().train_on_batch(batch, epoch, validate)
        for name, auxiliary in self.auxiliaries.items():
            with torch.set_grad_enabled(not validate):
                loss, said = auxiliary.loss(batch)
            if not validate:
                self._gradient_step(name, auxiliary.config.loss * loss)
                auxiliary.follow(batch)
            info |= {f"{name}/{key}": value.detach() for key, value in said.items()}
        return info

    def _decide(self, batch: Batch) -> tuple[StochasticPolicy, Tensor]:
        """What policy and value (B,) now say in a minibatch's states."""
        return self.net(batch["obs"])  # type: ignore[no-any-return]

    def _advantages(self, batch: Batch) -> Tensor:
        """(B,) normalized where that is wanted."""
        advantages: Tensor = batch["advantages"]
        if not self.algo_config.normalize_advantages or len(advantages) < 2:
            return advantages
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def leaves_rollout(self, info: Info) -> bool:
        """True where an update is to be the last one on its rollout."""
        return False

    # ---- test time -----------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        action, extras = self._chosen(self.net.actor(obs, goal), explore, generator)
        return PolicyStep(action, state, extras)

    def _chosen(
        self, policy: StochasticPolicy, explore: bool, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy's action, drawn to explore; what learning from it needs."""
        if not explore:
            return policy.mean, {}
        action = policy.sample(generator)
        return action, {"policy_action": action, "log_prob": policy.log_prob(action)}


def by_parts(batch: Batch, function: Callable[[Batch], Tensor | None]) -> Tensor | None:
    """The function's result (B,) for a batch, of :data:`CHUNK` rows at a time; None where it is None."""
    count = len(batch["executed"])
    parts = [function(select_rows(batch, slice(i, i + CHUNK))) for i in range(0, count, CHUNK)]
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def select_rows(batch: Batch, rows: Tensor | slice) -> Batch:
    """These rows of every tensor."""
    return {
        key: select_rows(value, rows) if isinstance(value, dict) else value[rows]
        for key, value in batch.items()
    }
