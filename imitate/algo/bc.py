"""Behavior cloning: supervised learning of actions from demonstrations.

Variants and losses as studied by Mandlekar et al., "What Matters in Learning from Offline Human Demonstrations for
Robot Manipulation", CoRL 2021 (arXiv:2108.03298). A policy is an encoder, a backbone and a head; the head owns its
loss. With a = the demonstrated action, s = the observation and f = encoder and backbone:

    backbone   MLP over one observation or stacked frames                                -> models.actor.Actor
               LSTM or GRU over the window (``algo.rnn``)                                -> RecurrentActor
               transformer over the last observations (``algo.transformer``)             -> TransformerActor
    head       l2 |f(s) - a|^2 + l1 smooth_l1(f(s), a) + cos (1 - cos(f(s), a))          -> DeterministicHead.loss
               -log N(a; mean(s), std(s))  (``algo.gaussian``)                           -> GaussianHead.loss
               -log sum_k w_k(s) N(a; mean_k(s), std_k(s))  (``algo.gmm``)               -> GMMHead.loss
               -log pi(c | s), the cross-entropy  (``algo.num_choices``)                 -> CategoricalHead.loss
               -log pi(c | s) - log N(u; mean_c(s), std_c(s)), u before its tanh         -> MixedHead.loss
    BC_VAE     |decode(z, s) - a|^2 + kl_weight KL(q(z|a, s) || p(z|s)), z ~ q           -> BC_VAE._loss

Actions with ``algo.num_choices`` C are [one-hot of the choice c | numbers u]. With ``algo.chunk`` each head, except
those for choices, predicts the next K actions at once, as one vector of K A values; :mod:`imitate.algo.base.execution`
describes how they are executed.

Departures from robomimic: padded steps are left out of the loss if the batch has a ``pad_mask``; the validation loss of
stochastic policies uses the learned noise, not the low noise of acting, which made the loss meaningless; the network
sees all stacked frames, not only the oldest; a transformer with ``pred_future_acs`` predicts from the newest
observation, not from the oldest, and its predictions can be executed as a chunk; its context may be shorter than the
window.
"""

from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.execution import ChunkExecution, Inputs
from imitate.algo.base.factory import register_algo_factory_func
from imitate.algo.base.policy_state import InnerState, PolicyState
from imitate.algo.base.sections import (
    ChunkConfig,
    EMAConfig,
    GaussianConfig,
    GMMConfig,
    LayerDims,
    RNNConfig,
    TransformerConfig,
    VAEConfig,
)
from imitate.algo.slots.advantage import CloningSection
from imitate.config import BaseConfig, DataNeeds, Section
from imitate.config.optimizer import Networks, adam, networks
from imitate.errors import ConfigError
from imitate.functional.losses import masked_mean, sample_weight, step_weight
from imitate.models.actor import Actor, RecurrentActor, TransformerActor, VAEActor
from imitate.models.categorical import CategoricalHead
from imitate.models.heads import ActionHead, DeterministicHead
from imitate.models.mlp import MLP
from imitate.models.rnn import RNN
from imitate.models.vae import VAE
from imitate.system.text import counted

PARTS = ("gaussian", "gmm", "vae", "rnn", "transformer")
"""Subsections of ``algo`` that choose backbone and head if they are enabled."""


class LossConfig(Section):
    """Weights of the regression losses."""

    l2_weight: float = Field(1.0, ge=0, description="weight of the squared error")
    l1_weight: float = Field(0.0, ge=0, description="weight of the smooth L1 error")
    cos_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the cosine loss of the first 3 dimensions of an action, such as a direction",
    )


class BCConfig(CloningSection):
    """Options of algorithm ``bc``, under ``algo``; at most one of gaussian, gmm and vae is enabled."""

    optim_params: Networks = networks(policy=adam(1e-4))
    loss: LossConfig = Field(LossConfig())
    actor_layer_dims: LayerDims = Field(
        (1024, 1024),
        description="widths of the hidden layers, each followed by a ReLU; not used with a transformer",
    )
    gaussian: GaussianConfig = Field(GaussianConfig())
    gmm: GMMConfig = Field(GMMConfig())
    vae: VAEConfig = Field(VAEConfig())
    rnn: RNNConfig = Field(RNNConfig())
    transformer: TransformerConfig = Field(TransformerConfig())
    num_choices: int = Field(
        0,
        ge=0,
        description="number of choices of a discrete action, which is one-hot in the data and comes before any "
        "continuous numbers of an action; 0: all numbers are continuous",
    )
    chunk: ChunkConfig = Field(ChunkConfig())
    ema: EMAConfig = Field(EMAConfig())

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only up to the predicted action, or of the whole window with ``rnn`` or ``transformer``."""
        memory = self.rnn.enabled or self.transformer.enabled
        steps = None if memory else config.train.frame_stack
        return DataNeeds(observed_steps=steps, outcome=self.advantage.outcome)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        train = config.train
        problems = self.advantage.problems(self, config)
        if not (self.loss.l2_weight or self.loss.l1_weight or self.loss.cos_weight):
            problems.append(
                "algo.loss: all weights are 0, so nothing would be learned: set l2_weight to 1"
            )
        if self.rnn.enabled and train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but a recurrent policy remembers by itself: set it to 1"
            )
        if self.rnn.enabled and train.seq_length == 1 < self.rnn.horizon:
            problems.append(
                f"train.seq_length is 1, so a recurrent policy would learn from single steps and then act for "
                f"algo.rnn.horizon {counted(self.rnn.horizon, 'step')}: set train.seq_length to {self.rnn.horizon}"
            )
        if self.rnn.enabled and self.rnn.kwargs.get("bidirectional"):
            problems.append(
                "algo.rnn.kwargs.bidirectional is true, but a policy that acts cannot see the future: set it to false"
            )
        if self.num_choices and (self.chunk.enabled or self.gmm.enabled or self.vae.enabled):
            problems.append(
                f"algo.num_choices is {self.num_choices}, but chunk, gmm and vae predict only continuous actions: set "
                "their enabled to false"
            )
        if self.num_choices and self.transformer.enabled and self.transformer.pred_future_acs:
            problems.append(
                f"algo.num_choices is {self.num_choices}, but algo.transformer.pred_future_acs predicts only "
                "continuous actions: set it to false"
            )
        if self.chunk.enabled:
            problems += self._chunk_problems(train.seq_length)
        if self.transformer.enabled:
            problems += self._transformer_problems(train)
        return problems

    def _chunk_problems(self, seq_length: int) -> list[str]:
        steps = self.chunk.size
        if self.rnn.enabled:
            steps += self.rnn.horizon - 1
        problems = self.chunk.problems("algo.chunk")
        if seq_length < steps:
            problems.append(
                f"train.seq_length is {seq_length}, but chunks of algo.chunk.size {self.chunk.size} actions "
                f"need windows of {counted(steps, 'step')}: set it to {steps}"
            )
        return problems

    def _transformer_problems(self, train: Any) -> list[str]:
        config, length = self.transformer, self.transformer.context_length
        problems = []
        if config.embed_dim % config.num_heads:
            problems.append(
                f"algo.transformer.embed_dim is {config.embed_dim}, which algo.transformer.num_heads "
                f"{config.num_heads} does not divide: make it a multiple"
            )
        if config.rotary_embedding:
            if train.frame_stack > 1 or not config.supervise_all_steps or config.pred_future_acs:
                problems.append(
                    "algo.transformer.rotary_embedding: the policy remembers by itself and learns at every step: set "
                    "train.frame_stack to 1, supervise_all_steps to true and pred_future_acs to false"
                )
            if train.seq_length < length:
                problems.append(
                    f"train.seq_length is {train.seq_length}, shorter than algo.transformer.context_length {length}: "
                    f"set it to {2 * length}"
                )
            return problems
        if train.frame_stack < length:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but the policy sees algo.transformer.context_length "
                f"{length} observations: set it to {length}"
            )
        if config.pred_future_acs:
            if train.seq_length < length:
                problems.append(
                    f"train.seq_length is {train.seq_length}, but algo.transformer.pred_future_acs learns the next "
                    f"{length} actions: set it to {length}"
                )
            if self.chunk.enabled and self.chunk.size != length:
                problems.append(
                    f"algo.chunk.size is {self.chunk.size}, but with pred_future_acs a chunk is "
                    f"algo.transformer.context_length {length} actions: set it to {length}"
                )
        return problems


class BC(Algo[BCConfig]):
    """Encoder, backbone and head, trained by the head's loss."""

    form: ClassVar[tuple[str, ...] | None] = None
    """Names in :data:`PARTS` that the policy consists of; None: those that the section enables."""
    recordable = True

    @property
    def policy(self) -> Actor | RecurrentActor | TransformerActor:
        """Network that learns and acts."""
        return cast(Actor, self.active_nets["policy"])

    @cached_property
    def _form(self) -> tuple[str, ...]:
        return _enabled(self.config) if self.form is None else self.form

    # ---- networks ------------------------------------------------------------------------------------------------

    def _create_networks(self) -> None:
        self.nets = nn.ModuleDict({"policy": self._create_policy()})

    def _create_policy(self) -> nn.Module:
        config = self.config
        if "transformer" in self._form:
            steps = config.transformer
            encoder = self._create_encoder(frames=1)
            transformer = steps.make_network(encoder.output_dim)
            return TransformerActor(
                encoder,
                transformer,
                self._create_head(transformer.output_dim),
                frames=self.frame_stack,
                all_steps=steps.supervise_all_steps,
                future=steps.pred_future_acs,
            )
        encoder = self._create_encoder()
        if "rnn" not in self._form:
            mlp = MLP(encoder.output_dim, config.actor_layer_dims)
            return Actor(encoder, mlp, self._create_head(mlp.output_dim))
        memory = config.rnn
        rnn = RNN(encoder.output_dim, memory.hidden_dim, memory.num_layers, memory.rnn_type)
        mlp = MLP(rnn.output_dim, config.actor_layer_dims)
        head = self._create_head(mlp.output_dim)
        return RecurrentActor(
            encoder, rnn, mlp, head, horizon=memory.horizon, open_loop=memory.open_loop
        )

    def _create_head(self, input_dim: int) -> ActionHead:
        """Create the head for features (*B, input_dim)."""
        choices = self.config.num_choices
        if choices > self.ac_dim:
            raise ConfigError(
                f"algo.num_choices is {choices}, but actions have {self.ac_dim} numbers: set it to at most "
                f"{self.ac_dim}"
            )
        if choices:
            numbers = self.ac_dim - choices
            return (
                self.config.gaussian.make_mixed_head(input_dim, choices, numbers)
                if numbers
                else CategoricalHead(input_dim, choices)
            )
        if "gmm" in self._form:
            return self.config.gmm.make_head(input_dim, self._head_dim)
        if "gaussian" in self._form:
            return self.config.gaussian.make_head(input_dim, self._head_dim)
        return DeterministicHead(input_dim, self._head_dim, **self.config.loss.to_dict())

    # ---- chunks --------------------------------------------------------------------------------------------------

    @property
    def _predicts_future(self) -> bool:
        """True if the steps of a transformer's window are the actions of a chunk."""
        return "transformer" in self._form and self.config.transformer.pred_future_acs

    @cached_property
    def execution(self) -> ChunkExecution | None:
        """Execution of chunks; None for a policy of single actions.

        The window that a transformer predicts with ``pred_future_acs`` is a chunk too; by default, one of its actions
        is executed.
        """
        if self.config.chunk.enabled:
            return self.config.chunk.execution
        if self._predicts_future:
            return ChunkExecution(self.config.transformer.context_length)
        return None

    @cached_property
    def _chunk(self) -> int | None:
        """K if the head predicts K actions at once; None if it predicts single actions."""
        return None if self.execution is None or self._predicts_future else self.execution.size

    @property
    def _head_dim(self) -> int:
        """Number of values that the head predicts, for an action or a chunk."""
        return self.ac_dim * (self._chunk or 1)

    def _steps(self, values: Tensor) -> Tensor:
        """Reshape outputs of the head ``(*B, K A)`` to chunks ``(*B, K, A)``; single actions are not changed."""
        return values.reshape(*values.shape[:-1], -1, self.ac_dim) if self._chunk else values

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the backbone's observations, and actions or chunks at the steps that the loss uses."""
        actions = batch["actions"]
        counts = {key: batch.get(key) for key in ("pad_mask", "weight")}
        if self._chunk is not None:
            size = self._chunk
            actions = actions.unfold(1, size, 1).movedim(-1, 2)
            counts = {k: None if x is None else x.unfold(1, size, 1) for k, x in counts.items()}
        obs, steps = self.policy.select(batch["obs"], actions.shape[1])
        if self._chunk is None and isinstance(steps, int):
            counts["pad_mask"] = None  # the current step is never padding
        counts = {key: None if x is None else x[:, steps] for key, x in counts.items()}
        return {
            "obs": obs,
            "goal_obs": batch.get("goal_obs"),
            "actions": actions[:, steps],
            **counts,
        }

    def _features(self, batch: Batch) -> Tensor:
        """Return the inputs of the head, in float32, at the steps that the loss uses."""
        policy = self.policy
        features: Tensor
        with self.autocast():
            features, _ = policy(batch["obs"], batch["goal_obs"])
        return policy.supervised(features).float()

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of the action head and scalars to log."""
        loss, info = self.policy.head.loss(
            self._features(batch), batch["actions"], batch.get("pad_mask"), batch.get("weight")
        )
        return loss, {"Loss": loss, **info}

    def _predicted(self, batch: Batch) -> Tensor:
        """Return outputs of the head for a batch, as in evaluation."""
        return self.policy.head.act(self._features(batch))

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the policy's actions, in normalized units."""
        error = (self._steps(self._predicted(batch)) - batch["actions"]).abs().mean(-1)
        return {"Action_Error": masked_mean(error, batch.get("pad_mask"))}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        memory = self.policy.initial_memory(batch_size)
        return {**super()._initial_policy_state(batch_size), **memory}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Discard planned actions, and the observation that ``rnn.open_loop`` would reuse at later steps."""
        state = super().cut_plan(state)
        memory = self.policy.forget_plan(state["policy"])
        return state if memory is state["policy"] else {**state, "policy": memory}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        policy = self.policy
        inputs, memory = policy.observe(obs, goal, state)
        if self.execution is None:
            return PolicyStep(policy.decide(inputs, explore, generator), {**state, **memory}, {})

        def decide(inputs: Inputs) -> Tensor:
            return self._steps(policy.decide(inputs, explore, generator))

        action, chunk, extras = self.execution.step(state["chunk"], inputs, decide)
        return PolicyStep(action, {**state, **memory, "chunk": chunk}, extras)


class BC_VAE(BC):  # noqa: N801 - the name users know
    """Conditional variational autoencoder over actions; when acting, latents are sampled from the prior."""

    form = ("vae",)

    recordable = True

    @property
    def vae_policy(self) -> VAEActor:
        """Network that learns and acts."""
        return cast(VAEActor, self.active_nets["policy"])

    def _create_policy(self) -> nn.Module:
        # no CUDA graph with a categorical prior, whose temperature changes with the epoch
        self.recordable = not self.config.vae.prior.use_categorical
        encoder = self._create_encoder()
        return VAEActor(
            encoder, VAE.from_config(encoder.output_dim, self._head_dim, self.config.vae)
        )

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Set the Gumbel-softmax temperature of the epoch, then make one update or only compute the losses."""
        prior = self.config.vae.prior
        if not prior.use_categorical:
            return super().train_on_batch(batch, epoch, validate)
        temperature = prior.temperature(epoch)
        self.vae_policy.vae.set_gumbel_temperature(temperature)
        info = super().train_on_batch(batch, epoch, validate)
        return {**info, "Gumbel_Temperature": torch.tensor(temperature)}

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the negative evidence lower bound."""
        policy, config = self.vae_policy, self.config.vae
        actions = batch["actions"]
        out = policy.vae(actions.flatten(1), policy.encoder(batch["obs"], batch["goal_obs"]))
        kl = masked_mean(out.kl, sample_weight(batch))
        error = out.reconstruction_loss
        if self._chunk is not None:
            squares = (self._steps(out.reconstruction) - actions).square()
            sums = config.decoder.reconstruction_sum_across_elements
            error = squares.sum(-1) if sums else squares.mean(-1)
        reconstruction = masked_mean(error, step_weight(batch))
        loss = reconstruction + config.kl_weight * kl
        return loss, {"Loss": loss, "Reconstruction_Loss": reconstruction, "KL_Loss": kl}

    def _predicted(self, batch: Batch) -> Tensor:
        return self.vae_policy.decide({"obs": batch["obs"], "goal": batch["goal_obs"]})


# ---- aliases: names of robomimic's classes -------------------------------------------------------------------------


class BC_Gaussian(BC):  # noqa: N801
    """Diagonal Gaussian policy."""

    form = ("gaussian",)


class BC_GMM(BC):  # noqa: N801
    """Mixture of Gaussians policy."""

    form = ("gmm",)


class BC_RNN(BC):  # noqa: N801
    """Recurrent policy trained on windows; when acting, its state is reset every ``algo.rnn.horizon`` steps."""

    form = ("rnn",)


class BC_RNN_GMM(BC):  # noqa: N801
    """Recurrent policy with a mixture of Gaussians, robomimic's strongest variant on human demonstrations."""

    form = ("gmm", "rnn")


class BC_Transformer(BC):  # noqa: N801
    """Transformer over the last ``algo.transformer.context_length`` observations."""

    form = ("transformer",)


class BC_Transformer_GMM(BC):  # noqa: N801
    """Transformer with a mixture of Gaussians at every step."""

    form = ("gmm", "transformer")


_NAMED = (BC_VAE, BC_Gaussian, BC_GMM, BC_RNN, BC_RNN_GMM, BC_Transformer, BC_Transformer_GMM)


@register_algo_factory_func("bc", section=BCConfig)
def algo_config_to_class(algo_config: BCConfig) -> tuple[type[Algo], dict[str, Any]]:
    """Return the variant of BC with the enabled parts of the section, such as BC_RNN_GMM."""
    classes: dict[tuple[str, ...] | None, type[Algo]] = {(): BC}
    classes |= {algo_class.form: algo_class for algo_class in _NAMED}
    parts = _enabled(algo_config)
    if parts not in classes:
        enabled = " and ".join(f"algo.{part}.enabled" for part in parts)
        raise ConfigError(
            f"algo: {enabled} do not go together; enable one of them, or gmm with rnn or transformer"
        )
    return classes[parts], {}


def _enabled(config: BCConfig) -> tuple[str, ...]:
    return tuple(part for part in PARTS if getattr(config, part).enabled)
