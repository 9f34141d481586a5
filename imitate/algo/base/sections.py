"""Sections of the configuration that several algorithms share."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from imitate.algo.base.execution import ChunkExecution
from imitate.config import AlgoSection, BaseConfig, DataNeeds, OpenSection, Section, Subgoals
from imitate.config.observation import ROBOT_STATE
from imitate.config.optimizer import Networks, adam, networks
from imitate.models.categorical import MixedHead
from imitate.models.heads import GaussianHead, GMMHead
from imitate.models.transformer import CausalTransformer, Positions
from imitate.system.text import counted

LayerDims = tuple[PositiveInt, ...]

UncertaintySamples = Annotated[
    int,
    Field(
        ge=0,
        description="number of chunks from different noise that are predicted per observation: their spread is the "
        "uncertainty, and the first is executed; 0: no uncertainty",
    ),
]


class EMAConfig(Section):
    """Exponential moving average of the weights, which is used in evaluation mode."""

    enabled: bool = Field(False, description="act with the moving average of the weights")
    power: float = Field(
        0.75, gt=0, description="decay after n updates is 1 - (1 + n)^-power, up to max_decay"
    )
    max_decay: float = Field(0.9999, ge=0, lt=1, description="largest decay")


class ChunkConfig(Section):
    """Action chunks: prediction of several actions at once, and their execution."""

    enabled: bool = Field(False, description="predict a chunk of actions instead of one action")
    size: int = Field(
        16, ge=1, description="number of actions in a chunk, beginning with the current step's"
    )
    execute: int = Field(
        8, ge=1, description="number of actions executed before the next prediction"
    )
    temporal_ensemble: float | None = Field(
        None,
        description="m of temporal ensembling: overlapping chunks are averaged with weights "
        "exp(-m i), i = 0 for the oldest; needs execute 1; null: off",
    )
    latency: int = Field(
        0,
        ge=0,
        description="control steps that pass during a prediction; as many actions at the start of each new chunk are "
        "skipped",
    )

    @property
    def prediction_horizon(self) -> int:
        """Number of actions that a network predicts at once."""
        return self.size

    @property
    def execution(self) -> ChunkExecution:
        """Execution of chunks."""
        return ChunkExecution(self.size, self.execute, self.temporal_ensemble, self.latency)

    def problems(self, path: str) -> list[str]:
        """Return messages about settings of the execution; ``path`` is the dotted key of this section."""
        return execution_problems(
            self.size, self.execute, self.temporal_ensemble, self.latency, path
        )

    def prediction_problems(self, path: str, seq_length: int) -> list[str]:
        """Return messages about settings of an algorithm that always predicts chunks."""
        problems = self.problems(path)
        if not self.enabled:
            problems.append(
                f"{path}.enabled is false, but the algorithm predicts chunks: set it to true"
            )
        if seq_length < self.size:
            problems.append(
                f"train.seq_length is {seq_length}, too short for {path}.size {self.size}: set it to {self.size}"
            )
        return problems


def execution_problems(
    size: int, execute: int, temporal_ensemble: float | None, latency: int, path: str
) -> list[str]:
    """Return messages about settings for executing chunks of ``size`` actions; ``path`` is the section's dotted key."""
    if execute + latency > size:
        return [
            f"{path}: {counted(execute, 'step')} of execution after {latency} of latency need more actions "
            f"than the {size} "
            "that are predicted: predict more or execute fewer"
        ]
    if temporal_ensemble is not None and (execute != 1 or latency):
        return [
            f"{path}.temporal_ensemble averages a new prediction at every step: execute 1 action at a time and set "
            "latency to 0"
        ]
    return []


class GaussianConfig(Section):
    """Diagonal Gaussian policy."""

    enabled: bool = Field(False, description="predict a diagonal Gaussian")
    fixed_std: bool = Field(False, description="one learned standard deviation for all states")
    init_std: float = Field(0.1, gt=0, description="initial standard deviation")
    min_std: float = Field(0.01, gt=0, description="smallest standard deviation")
    std_activation: Literal["softplus", "exp"] = Field(
        "softplus", description="function from the network's output to the standard deviation"
    )
    low_noise_eval: bool = Field(True, description="act with std 1e-4 in evaluation")

    def make_head(self, input_dim: int, ac_dim: int) -> GaussianHead:
        """Create the head for features (*B, input_dim)."""
        return GaussianHead(
            input_dim,
            ac_dim,
            init_std=self.init_std,
            min_std=self.min_std,
            fixed_std=self.fixed_std,
            std_activation=self.std_activation,
            low_noise_eval=self.low_noise_eval,
        )

    def make_mixed_head(self, input_dim: int, num_choices: int, num_numbers: int) -> MixedHead:
        """Create a head for a discrete choice and continuous numbers, which are Gaussian before a tanh."""
        return MixedHead(
            input_dim,
            num_choices,
            num_numbers,
            init_std=self.init_std,
            min_std=self.min_std,
            fixed_std=self.fixed_std,
            std_activation=self.std_activation,
            low_noise_eval=self.low_noise_eval,
            use_tanh=True,
        )


class GMMConfig(Section):
    """Mixture of Gaussians policy."""

    enabled: bool = Field(False, description="predict a mixture of diagonal Gaussians")
    num_modes: int = Field(5, ge=1, description="number of modes of the mixture")
    min_std: float = Field(1e-4, gt=0, description="smallest standard deviation")
    std_activation: Literal["softplus", "exp"] = Field(
        "softplus", description="function from the network's output to the standard deviation"
    )
    low_noise_eval: bool = Field(True, description="act with std 1e-4 in evaluation")

    def make_head(self, input_dim: int, ac_dim: int) -> GMMHead:
        """Create the head for features (*B, input_dim)."""
        return GMMHead(
            input_dim,
            ac_dim,
            num_modes=self.num_modes,
            min_std=self.min_std,
            std_activation=self.std_activation,
            low_noise_eval=self.low_noise_eval,
        )


class VAEDecoderConfig(Section):
    """Decoder of the VAE."""

    is_conditioned: bool = Field(True, description="the decoder sees the observation")
    reconstruction_sum_across_elements: bool = Field(
        False, description="sum the squared error over action dimensions instead of averaging it"
    )


class VAEPriorConfig(Section):
    """Prior of the VAE: standard normal by default, or learned, or categorical."""

    learn: bool = Field(False, description="learn the prior; false: it is fixed")
    is_conditioned: bool = Field(False, description="the learned prior depends on the observation")
    use_gmm: bool = Field(False, description="use a mixture of Gaussians as prior")
    gmm_num_modes: int = Field(10, ge=1, description="number of modes of the mixture prior")
    gmm_learn_weights: bool = Field(
        False, description="learn the weights of the mixture's modes; false: equal weights"
    )
    use_categorical: bool = Field(
        False, description="use discrete latents, sampled by Gumbel-softmax"
    )
    categorical_dim: int = Field(10, ge=2, description="number of classes of each discrete latent")
    categorical_gumbel_softmax_hard: bool = Field(
        False,
        description="make Gumbel-softmax samples one-hot, with the gradient of the relaxed samples",
    )
    categorical_init_temp: float = Field(1.0, gt=0, description="initial temperature")
    categorical_temp_anneal_step: float = Field(
        0.001, ge=0, description="decrease of the Gumbel-softmax temperature per epoch"
    )
    categorical_min_temp: float = Field(0.3, gt=0, description="smallest temperature")

    def temperature(self, epoch: int) -> float:
        """Return the temperature of discrete latents in an epoch, counted from 1."""
        fallen = self.categorical_init_temp - epoch * self.categorical_temp_anneal_step
        return max(fallen, self.categorical_min_temp)


class VAEConfig(Section):
    """Conditional variational autoencoder."""

    enabled: bool = Field(False, description="conditional variational autoencoder over actions")
    latent_dim: int = Field(
        14, ge=1, description="size of the latent; twice the size of an action is usual"
    )
    latent_clip: float | None = Field(
        None, description="clip samples of the prior to plus or minus this number"
    )
    kl_weight: float = Field(
        1.0, ge=0, description="weight of the KL divergence of the posterior from the prior"
    )
    decoder: VAEDecoderConfig = Field(VAEDecoderConfig())
    prior: VAEPriorConfig = Field(VAEPriorConfig())
    encoder_layer_dims: LayerDims = Field(
        (300, 400), description="widths of the hidden layers of the encoder"
    )
    decoder_layer_dims: LayerDims = Field(
        (300, 400), description="widths of the hidden layers of the decoder"
    )
    prior_layer_dims: LayerDims = Field(
        (300, 400), description="widths of the hidden layers of the prior"
    )


class RNNConfig(Section):
    """Recurrent policy."""

    enabled: bool = Field(False, description="recurrent policy")
    horizon: int = Field(
        10, ge=1, description="number of steps after which the recurrent state is reset when acting"
    )
    hidden_dim: int = Field(400, ge=1, description="size of the hidden state")
    rnn_type: Literal["LSTM", "GRU"] = Field("LSTM", description="type of the recurrent cell")
    num_layers: int = Field(2, ge=1, description="number of stacked layers")
    open_loop: bool = Field(False, description="use only the first observation of each horizon")
    kwargs: OpenSection = Field(
        OpenSection.model_validate({"bidirectional": False}),
        description="further arguments of the recurrent network in robomimic, which have no effect here; "
        "bidirectional must be false",
    )


class TransformerConfig(Section):
    """Transformer policy."""

    enabled: bool = Field(False, description="transformer policy")
    context_length: int = Field(
        10, ge=1, description="number of steps of observations that the policy sees"
    )
    embed_dim: int = Field(512, ge=1, description="number of features of a token")
    num_layers: int = Field(6, ge=1, description="number of blocks")
    num_heads: int = Field(8, ge=1, description="number of attention heads")
    emb_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the embedded inputs")
    attn_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the attention")
    block_output_dropout: float = Field(
        0.1, ge=0, lt=1, description="dropout after each attention and MLP"
    )
    sinusoidal_embedding: bool = Field(
        False, description="use fixed embeddings of positions, made of sines and cosines"
    )
    activation: Literal["gelu", "geglu"] = Field(
        "gelu", description="activation of the blocks' hidden layer"
    )
    supervise_all_steps: bool = Field(
        False, description="compute the loss at every step of the window; false: only at the last"
    )
    nn_parameter_for_timesteps: bool = Field(True, description="learn the embeddings of positions")
    pred_future_acs: bool = Field(
        False,
        description="predict the next context_length actions, from the newest observation on, instead of the actions "
        "of the window",
    )
    causal: bool | None = Field(
        None,
        description="each step attends only to earlier steps; null: true, but false with "
        "pred_future_acs, so that each action depends on the newest observation",
    )
    rotary_embedding: bool = Field(
        False,
        description="use rotary positions and a cache, to process one observation at a time when acting, which is fast",
    )

    def make_network(self, input_dim: int) -> CausalTransformer:
        """Create the transformer for steps (B, T, input_dim)."""
        positions: Positions = "embedding"
        if self.rotary_embedding:
            positions = "rotary"
        elif self.sinusoidal_embedding:
            positions = "sinusoidal"
        elif self.nn_parameter_for_timesteps:
            positions = "parameter"
        return CausalTransformer(
            input_dim,
            embed_dim=self.embed_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            context_length=self.context_length,
            positions=positions,
            emb_dropout=self.emb_dropout,
            attn_dropout=self.attn_dropout,
            block_output_dropout=self.block_output_dropout,
            activation=self.activation,
            causal=not self.pred_future_acs if self.causal is None else self.causal,
        )


class MeanSubgoalConfig(Section):
    """Planner without a VAE, which predicts the mean subgoal."""

    planner_layer_dims: LayerDims = Field((300, 400), description="widths of the hidden layers")


class GLConfig(AlgoSection):
    """Options of algorithm ``gl``, under ``algo``."""

    acts = False
    tree_defaults = {
        "experiment": {"rollout": {"enabled": False}},
        "observation": {"modalities": {"subgoal": {"low_dim": list(ROBOT_STATE)}}},
    }

    optim_params: Networks = networks("GLOptimParams", goal_network=adam(1e-4))
    subgoal_horizon: int = Field(
        10, ge=1, description="number of steps from an observation to its subgoal"
    )
    ae: MeanSubgoalConfig = Field(MeanSubgoalConfig())
    vae: VAEConfig = Field(VAEConfig(enabled=True, latent_dim=16))

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request the observation ``subgoal_horizon`` steps ahead, and images only up to the current step."""
        keys = tuple(config.observation.modality_of("subgoal"))
        return DataNeeds(
            subgoals=Subgoals(keys, self.subgoal_horizon), observed_steps=config.train.frame_stack
        )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        if config.observation.modality_of("subgoal"):
            return []
        return [
            "observation.modalities.subgoal: lists nothing to predict: name at least one observation"
        ]
