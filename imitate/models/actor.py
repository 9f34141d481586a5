"""Policy networks: an encoder of observation and goal, a backbone, an action head.

The backbone determines the steps of a window that a policy learns from, and its memory in a rollout:

    Actor              an MLP over the newest observation, or over stacked frames; no memory
    RecurrentActor     an LSTM or GRU over the window, then an MLP at each step
    TransformerActor   a transformer over the last observations
    VAEActor           no backbone and no head: a VAE over actions, given the features of the encoder

``PolicyAndValue`` has a policy and a value with a shared encoder, and optionally a recurrent network after it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from imitate.models.categorical import Categorical, CategoricalHead
from imitate.models.heads import ActionHead, Gaussian, GaussianHead
from imitate.models.mlp import MLP, FullPrecisionLinear
from imitate.models.moments import PopArt
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN, RNNState
from imitate.models.transformer import CausalTransformer
from imitate.models.vae import VAE

Obs = dict[str, Tensor]

Memory = dict[str, Any]
"""Nested dict of tensors (B, ...) that a policy keeps from step to step."""

Inputs = dict[str, Any]
"""Inputs of :meth:`PolicyNetwork.decide`: a nested dict of tensors (B, ...) or None; rows can be selected."""


class FeatureEncoder(Protocol):
    """Network that maps observations (*B, ...) by key to features (*B, D)."""

    output_dim: int

    def __call__(self, obs: Obs) -> Tensor:
        """Return the features."""


class GroupEncoder(nn.Module):
    """Encoder of observation and goal, whose features are concatenated.

    Args:
        obs: encoder of the group ``obs``.
        goal: encoder of the group ``goal``; None for a policy without goals.
        frames: F; if F > 1, observations are ``(B, F, ...)`` and the features of the frames are concatenated, oldest
            first.
    """

    def __init__(
        self, obs: FeatureEncoder, goal: ObservationEncoder | None = None, frames: int = 1
    ) -> None:
        super().__init__()
        self.obs = cast(ObservationEncoder, obs)
        self.goal = goal
        self.frames = frames
        self.output_dim = obs.output_dim * frames + (goal.output_dim if goal else 0)

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Encode observations ``(B, ...)`` or windows ``(B, T, ...)``: ``(B, D)`` or ``(B, T, D)``.

        A goal ``(B, ...)`` is the same for all steps of a window.
        """
        features: Tensor = self.obs(obs)
        if self.frames > 1:
            features = features.flatten(-2)
        if self.goal is None:
            return features
        goal_features: Tensor = self.goal(goal)
        if features.dim() == 3:
            goal_features = goal_features.unsqueeze(1).expand(-1, features.shape[1], -1)
        return torch.cat([features, goal_features], dim=-1)


class PolicyNetwork(nn.Module, ABC):
    """Base class of policy networks, which select steps of a window to learn, keep memory in rollouts, and act.

    In training, :meth:`select` selects observations and targets of a window. In a rollout, :meth:`observe` processes an
    observation at every step, and :meth:`decide` predicts actions from its result.

    By default, a network sees the first ``encoder.frames`` observations of a window, learns the action at the last of
    these, and has no memory.
    """

    encoder: GroupEncoder

    def select(self, obs: Obs, num_targets: int) -> tuple[Obs, int | slice]:
        """Split a window into the network's input observations and the steps that the loss uses.

        Args:
            obs: (B, T, ...).
            num_targets: number of steps of the window that have a target.
        """
        frames = self.encoder.frames
        steps = slice(0, frames) if frames > 1 else 0
        return {key: value[:, steps] for key, value in obs.items()}, frames - 1

    def supervised(self, features: Tensor) -> Tensor:
        """Return the features of those steps that the loss uses, from the features of all steps."""
        return features

    def initial_memory(self, batch_size: int) -> Memory:
        """Return the memory of B policies at the start of an episode."""
        return {}

    def observe(self, obs: Obs, goal: Obs | None, memory: Memory) -> tuple[Inputs, Memory]:
        """Process one step: return the inputs of :meth:`decide`, and the next memory.

        Args:
            obs: (B, ...), or (B, F, ...) if frames are stacked.
            goal: (B, ...), if the policy has goals.
            memory: from :meth:`initial_memory` or the previous step; other keys of the state are ignored.
        """
        return {"obs": obs, "goal": goal}, {}

    @abstractmethod
    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return actions (B, D) or (B, T, D): with the learned noise if ``explore``, else as in evaluation."""

    def forget_plan(self, memory: Memory) -> Memory:
        """Return the memory without an observation that :meth:`observe` would reuse at later steps."""
        return memory


class Actor(PolicyNetwork):
    """Encoder -> MLP -> head."""

    def __init__(self, encoder: GroupEncoder, mlp: MLP, head: ActionHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = mlp
        self.head = head

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[Tensor, None]:
        """Return features ``(B, D)`` for the head, and no state."""
        return self.mlp(self.encoder(obs, goal)), None

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the action ``(B, D)``."""
        features = self.mlp(self.encoder(inputs["obs"], inputs["goal"]))
        return self.head.act(features, explore, generator)


class RecurrentActor(PolicyNetwork):
    """Encoder -> RNN -> MLP -> head at each step of a window.

    Args:
        encoder: encoder of one step.
        rnn: recurrent network over the steps.
        mlp: MLP on the RNN's output at each step.
        head: head on the MLP's output at each step.
        horizon: number of steps after which the recurrent state is reset when acting.
        open_loop: use the first observation of each horizon for all steps of the horizon.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        rnn: RNN,
        mlp: MLP,
        head: ActionHead,
        *,
        horizon: int,
        open_loop: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.rnn = rnn
        self.mlp = mlp
        self.head = head
        self.horizon = horizon
        self.open_loop = open_loop

    def forward(
        self, obs: Obs, goal: Obs | None = None, state: RNNState | None = None
    ) -> tuple[Tensor, RNNState]:
        """Map windows ``(B, T, ...)`` to features for the head, ``(B, T, D)``, and the RNN's last state."""
        features, state = self.rnn(self.encoder(obs, goal), state)
        return self.mlp(features), state

    def select(self, obs: Obs, num_targets: int) -> tuple[Obs, int | slice]:
        """Select the first ``num_targets`` steps, all of which the loss uses."""
        if self.open_loop:
            obs = {key: value[:, :1].expand_as(value) for key, value in obs.items()}
        return {key: value[:, :num_targets] for key, value in obs.items()}, slice(None)

    def initial_memory(self, batch_size: int) -> Memory:
        """Return the RNN's initial state and step counter; with ``open_loop`` also an observation."""
        rnn = self.rnn.initial_state(batch_size)
        device = rnn["h"].device
        memory: Memory = {
            "rnn": rnn,
            "step": torch.zeros(batch_size, dtype=torch.long, device=device),
        }
        if self.open_loop:
            memory["obs"] = {
                key: torch.zeros(batch_size, *shape, device=device)
                for key, shape in self.encoder.obs.obs_shapes.items()
            }
        return memory

    def observe(self, obs: Obs, goal: Obs | None, memory: Memory) -> tuple[Inputs, Memory]:
        """Run one step of the RNN; return ``features`` for the head."""
        fresh = memory["step"] == 0
        keep = (~fresh).view(-1, 1, 1)
        state = {name: value * keep for name, value in memory["rnn"].items()}
        after: Memory = {"step": (memory["step"] + 1) % self.horizon}
        if self.open_loop:
            obs = {
                key: torch.where(
                    fresh.view(-1, *[1] * (value.dim() - 1)), value, memory["obs"][key]
                )
                for key, value in obs.items()
            }
            after["obs"] = obs
        window = {key: value.unsqueeze(1) for key, value in obs.items()}
        features, after["rnn"] = self(window, goal, state)
        return {"features": features[:, 0]}, after

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the action ``(B, D)``."""
        return self.head.act(inputs["features"], explore, generator)

    def forget_plan(self, memory: Memory) -> Memory:
        """With ``open_loop``, start a new horizon at the next step, so that its observation is used."""
        if not self.open_loop:
            return memory
        return {**memory, "step": torch.zeros_like(memory["step"])}


class TransformerActor(PolicyNetwork):
    """Encoder of each step -> transformer over the last ``context_length`` steps -> head at each step.

    The action is predicted at the newest step. With ``future``, step i of the window predicts the i-th action after the
    newest observation. With rotary positions, the memory is the transformer's cache, and only one observation is
    processed per step.

    Args:
        encoder: encoder of one step.
        transformer: transformer over the steps.
        head: head on the transformer's output at each step.
        frames: F; step F of the window is the newest observation.
        all_steps: learn at every step of the context; if false, only at the newest.
        future: targets are the next ``context_length`` actions.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        transformer: CausalTransformer,
        head: ActionHead,
        *,
        frames: int,
        all_steps: bool = False,
        future: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.transformer = transformer
        self.head = head
        self.frames = frames
        self.all_steps = all_steps
        self.future = future
        self.has_cache = transformer.positions == "rotary"

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[Tensor, None]:
        """Map windows ``(B, T, ...)`` to features for the head, ``(B, T, D)``, and an empty state."""
        features: Tensor = self.transformer(self.encoder(obs, goal))
        return features, None

    def select(self, obs: Obs, num_targets: int) -> tuple[Obs, int | slice]:
        """Select the context up to the newest frame, and target steps: all, only the newest, or from the newest on."""
        now, length = self.frames, self.transformer.context_length
        context = slice(0, num_targets) if self.has_cache else slice(now - length, now)
        targets = context
        if self.future:
            targets = slice(now - 1, now - 1 + length)
        elif not self.all_steps:
            targets = slice(now - 1, now)
        return {key: value[:, context] for key, value in obs.items()}, targets

    def supervised(self, features: Tensor) -> Tensor:
        """Return features ``(B, T, D)`` of all steps, or ``(B, 1, D)`` of the newest."""
        return features if self.all_steps or self.future else features[:, -1:]

    def initial_memory(self, batch_size: int) -> Memory:
        """Return an empty cache if positions are rotary, else no memory."""
        return {"cache": self.transformer.initial_cache(batch_size)} if self.has_cache else {}

    def observe(self, obs: Obs, goal: Obs | None, memory: Memory) -> tuple[Inputs, Memory]:
        """Compute ``features`` of the newest step if positions are rotary; otherwise return the observations."""
        if self.has_cache:
            newest, cache = self.transformer.step(self.encoder(obs, goal), memory["cache"])
            return {"features": newest}, {"cache": cache}
        if self.frames == 1:
            obs = {key: value[:, None] for key, value in obs.items()}
        length = self.transformer.context_length
        return {"obs": {key: value[:, -length:] for key, value in obs.items()}, "goal": goal}, {}

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the action ``(B, D)``, or with ``future`` a chunk ``(B, T, D)``."""
        if self.has_cache:
            return self.head.act(inputs["features"], explore, generator)
        features, _ = self(inputs["obs"], inputs["goal"])
        # A mixture draws samples for all steps of the window, as in robomimic, so that the same seed gives the same
        # actions.
        actions = self.head.act(features, explore, generator)
        return actions if self.future else actions[:, -1]


class VAEActor(PolicyNetwork):
    """Policy with an encoder and a VAE over actions, conditioned on the encoder's features."""

    def __init__(self, encoder: GroupEncoder, vae: VAE) -> None:
        super().__init__()
        self.encoder = encoder
        self.vae = vae

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the action ``(B, D)`` decoded from latents of the prior."""
        return self.vae.act(self.encoder(inputs["obs"], inputs["goal"]), generator)


StochasticPolicy = Gaussian | Categorical
_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class PolicyAndValue(nn.Module):
    """Policy and value, each with its own hidden layers, on a shared encoder.

    Policy and value share a recurrent network, because the value depends on the same part of the past as the policy,
    and the value's loss gives the network the stronger gradient.

    Args:
        encoder: encoder of observations.
        ac_dim: A.
        num_choices: number of choices of a discrete action; 0 for continuous actions.
        memory: recurrent network after the encoder, or None.
        layer_dims: widths of the hidden layers, which policy and value have separately.
        activation: activation after each hidden layer.
        init_std: initial standard deviation, the same for all states.
        orthogonal_init: initialize weights orthogonally.
        num_values: V, number of values of each state; 0 for a single value without the axis V.
        popart: rate of the values' normalization (:class:`~imitate.models.moments.PopArt`), or None.
        more: encoder of further observations that only the value sees; None if policy and value see the same
            observations.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        ac_dim: int,
        num_choices: int,
        memory: RNN | None = None,
        *,
        layer_dims: Sequence[int],
        activation: Literal["tanh", "relu"] = "tanh",
        init_std: float = 1.0,
        orthogonal_init: bool = True,
        num_values: int = 0,
        popart: float | None = None,
        more: GroupEncoder | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.output_dim if memory is None else memory.output_dim
        self.policy = MLP(width, layer_dims, _ACTIVATIONS[activation])
        self.more = more
        width += 0 if more is None else more.output_dim
        self.value = MLP(width, layer_dims, _ACTIVATIONS[activation])
        width = self.policy.output_dim
        self.head: CategoricalHead | GaussianHead = (
            CategoricalHead(width, ac_dim)
            if num_choices
            else GaussianHead(width, ac_dim, init_std=init_std, state_independent_std=True)
        )
        self.num_values = num_values
        outputs = max(1, num_values)
        self.value_head = (
            FullPrecisionLinear(width, outputs)
            if popart is None
            else PopArt(width, outputs, popart)
        )
        self.memory = memory
        if orthogonal_init:
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
        for weight in () if self.memory is None else self.memory.parameters():
            if weight.dim() > 1:
                nn.init.orthogonal_(weight)
            else:
                nn.init.zeros_(weight)

    def forward(self, obs: Obs, goal: Obs | None = None) -> tuple[StochasticPolicy, Tensor]:
        """Return the policy's distribution and the values (B,) for observations, without a recurrent network."""
        return self.decide(self.encoder(obs, goal), obs)

    def decide(self, features: Tensor, obs: Obs) -> tuple[StochasticPolicy, Tensor]:
        """Return the policy's distribution and the values (B,) for features (B, D) of observations."""
        return self.policy_of(features), self.values_of(features, obs)

    def policy_of(self, features: Tensor) -> StochasticPolicy:
        """Return the policy's distribution for features (B, D)."""
        return cast(StochasticPolicy, self.head(self.policy(features)))

    def values_of(self, features: Tensor, obs: Obs) -> Tensor:
        """Return values (B,), or (B, V) with V values per state, for features (B, D) of observations."""
        if self.more is not None:
            features = torch.cat([features, self.more(obs)], dim=-1)
        value: Tensor = self.value_head(self.value(features))
        return value if self.num_values else value.squeeze(-1)

    def actor(self, obs: Obs, goal: Obs | None = None) -> StochasticPolicy:
        """Return the policy's distribution for observations, without a recurrent network."""
        return self.policy_of(self.encoder(obs, goal))

    @property
    def unused_to_act(self) -> tuple[str, ...]:
        """Names of the submodules that acting cannot use: the value's, if it sees more observations than the policy."""
        return () if self.more is None else ("more", "value", "value_head")
