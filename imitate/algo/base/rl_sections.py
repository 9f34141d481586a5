"""Sections of the configuration that algorithms with critics share; keys that robomimic has too are named as there."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from imitate.algo.base.sections import GMMConfig, LayerDims, VAEConfig
from imitate.algo.slots.memory import ReplayedMemoryConfig
from imitate.algo.slots.reward_weights import (
    RewardsConfig,
    RewardWeightsConfig,
    array_of,
    refusals,
    sources_of,
)
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Section, Transitions
from imitate.config.data_needs import FollowingSteps
from imitate.config.optimizer import Networks, networks
from imitate.models.critics import Activation
from imitate.system.text import DURATION

TARGET: Any = Field(
    "policy",
    description="next action in the TD target. policy: an action of the current policy; data: the action that was "
    "taken (SARSA)",
)


class CriticEnsembleConfig(Section):
    """Ensemble of critics, and how a TD target combines their values."""

    n: int = Field(2, ge=1, description="number of critics")
    weight: float = Field(
        1.0,
        ge=0,
        le=1,
        description="the critics' values are combined as weight * smallest + (1 - weight) * largest",
    )
    shared_encoder: bool = Field(
        True,
        description="share one image encoder among all critics; false: one encoder each, as in robomimic",
    )


class CriticConfig(Section):
    """Critics, which estimate values of actions."""

    activation: ClassVar[Activation] = "relu"
    layer_dims: LayerDims = Field((300, 400), description="widths of the hidden layers")
    layer_norm: bool = Field(False, description="layer normalization after each ReLU")
    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig())
    use_huber: bool = Field(
        False, description="use the smooth L1 error instead of the squared error"
    )
    max_gradient_norm: float | None = Field(
        None,
        gt=0,
        description="largest norm of the gradients, to which larger ones are scaled down; null: train.max_grad_norm",
    )
    value_bounds: tuple[float, float] | None = Field(
        None,
        description="lowest and highest value that critics can predict, enforced by a tanh; null: they are not bounded",
    )


class ActorNetCommonConfig(Section):
    """Settings that Gaussian and mixture actors share."""

    std_activation: Literal["softplus", "exp"] = Field(
        "softplus", description="function from the network's output to the standard deviation"
    )
    low_noise_eval: bool = Field(True, description="act with almost no noise in evaluation")
    use_tanh: bool = Field(False, description="apply tanh to samples instead of means")


class ActorGaussianConfig(Section):
    """Diagonal Gaussian actor."""

    init_last_fc_weight: float | None = Field(
        0.001,
        gt=0,
        description="initialize the last layer uniformly between minus and plus this number; null: torch's default",
    )
    init_std: float = Field(0.3, gt=0, description="initial standard deviation")
    min_std: float = Field(0.007, gt=0, description="smallest standard deviation")
    max_std: float = Field(7.5, gt=0, description="largest standard deviation")
    fixed_std: bool = Field(False, description="keep the standard deviation at its initial value")
    state_independent_std: bool = Field(
        False, description="learn one standard deviation for all states"
    )


class ActorGMMConfig(Section):
    """Mixture of Gaussians actor."""

    num_modes: int = Field(5, ge=1, description="number of modes of the mixture")
    min_std: float = Field(1e-4, gt=0, description="smallest standard deviation")


class ActorNetConfig(Section):
    """Distribution of a stochastic actor."""

    type: Literal["gaussian", "gmm"] = Field(
        "gaussian",
        description="distribution of the actor: a diagonal Gaussian, or a mixture of Gaussians (gmm)",
    )
    common: ActorNetCommonConfig = Field(ActorNetCommonConfig())
    gaussian: ActorGaussianConfig = Field(ActorGaussianConfig())
    gmm: ActorGMMConfig = Field(ActorGMMConfig())


class ActorConfig(Section):
    """Actor, which is the policy network."""

    layer_dims: LayerDims = Field((300, 400), description="widths of the hidden layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after each hidden layer")
    max_gradient_norm: float | None = Field(
        None,
        gt=0,
        description="largest norm of the gradients, to which larger ones are scaled down; null: train.max_grad_norm",
    )


class DelayedActorConfig(ActorConfig):
    """Deterministic actor that is updated less often than its critics, and the noise of target actions (TD3)."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    update_freq: int = Field(
        2,
        ge=1,
        description="number of critic updates between two updates of the actor and the targets",
    )
    noise_std: float = Field(
        0.2,
        ge=0,
        description="standard deviation of the noise added to target actions, in normalized units",
    )
    noise_clip: float = Field(
        0.5, ge=0, description="largest magnitude of the noise of target actions"
    )


class StochasticActorConfig(ActorConfig):
    """An actor with a distribution over actions."""

    net: ActorNetConfig = Field(ActorNetConfig())


class ActorCriticConfig(AlgoSection):
    """Base class of the sections of algorithms that learn values from transitions."""

    needs_next_actions: ClassVar[bool] = False
    reward_free: ClassVar[bool] = False
    """True if the algorithm computes its own rewards, so that demonstrations need no rewards."""
    value_per_reward: ClassVar[bool] = False
    """True if the algorithm learns a value of each named reward of ``rewards``."""
    values_chunks: ClassVar[bool] = False
    """True if critics estimate values of whole chunks of ``n_step`` actions, all of which are executed."""
    learns_rewards = True

    discount: float = Field(0.99, ge=0, lt=1, description="discount factor per step")
    n_step: int = Field(
        1,
        ge=1,
        description="number of steps whose rewards are summed before the TD target bootstraps",
    )
    target_tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak rate of the target networks: share of the online weights that they take over per update",
    )
    infinite_horizon: bool = Field(
        False,
        description="multiply the reward of a terminal step by 1 / (1 - discount), as if it were received for ever",
    )
    extrinsic: float = Field(
        1.0,
        ge=0,
        description="weight of the environment's reward; 0: learn only from the rewards of auxiliaries",
    )
    rewards: RewardsConfig = Field(
        RewardsConfig(),
        description="named rewards, whose weighted sum replaces the reward of the environment or of the data file",
    )
    reward_weights: RewardWeightsConfig = Field(RewardWeightsConfig())

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request transitions, and images only up to the current step, because transitions contain later images.

        With a recurrent encoder (section ``rnn``), request sequences of transitions.
        """
        needs = DataNeeds(
            transitions=Transitions(
                discount=self.discount,
                n_step=self.n_step,
                next_actions=self.needs_next_actions or self.get("target", None) == "data",
                infinite_horizon=self.infinite_horizon,
                signals=tuple(array_of(source) for source in sources_of(self)),
                signal_discounts=tuple(
                    self.discount if entry.discount is None else entry.discount
                    for _, entry in self.rewards.items()
                ),
            ),
            observed_steps=config.train.frame_stack,
            environment_rewards=not self.reward_free,
        )
        rnn = self._memory()
        return needs if rnn is None else rnn.data_needs(needs, config)

    def _memory(self) -> ReplayedMemoryConfig | None:
        """Return the section under the key ``rnn``, if there is one."""
        memory: ReplayedMemoryConfig | None = self.get("rnn", None)
        return memory

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        train, problems = config.train, []
        if train.hdf5_load_next_obs is False:
            problems.append(
                f"train.hdf5_load_next_obs is false, but {config.algo_name} learns from next observations: leave it out"
            )
        if train.gradient_accumulation > 1:
            problems.append(
                f"train.gradient_accumulation is {train.gradient_accumulation}, but the target networks of "
                f"{config.algo_name} follow every batch: set it to 1 and enlarge train.batch_size"
            )
        if train.precision == "bf16":
            problems.append(
                f"train.precision is 'bf16', too coarse for the values of {config.algo_name}: set it to 'fp32'"
            )
        rnn = self._memory()
        if rnn is not None:
            problems += rnn.problems(config)
            if rnn.enabled and self.get("target", None) == "data":
                problems.append(
                    "algo.target is 'data', but sequences have no next actions: set algo.rnn.enabled to false"
                )
        problems += extrinsic_problems(self) + refusals(self, config)
        problems += self._problems_of_critics(config)
        return problems + self._problems_of_repetition(config)

    def _problems_of_critics(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with observations that only the critics see."""
        keys, rnn = ", ".join(config.observation.modality_of("critic")), self._memory()
        found = {
            "algo.rnn.enabled is true, and actor and critics share that memory: set it to false, or choose ppo": (
                rnn is not None and rnn.enabled
            ),
            "algo.dynamics predicts only the observations of obs: set it to null": (
                self.get("dynamics", None) is not None
            ),
        }
        return [
            f"observation.modalities.critic lists {keys}, but {words}"
            for words, holds in found.items()
            if keys and holds
        ]

    def _problems_of_repetition(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with actions that are repeated for several steps."""
        if not config.train.online.repeats:
            return []
        found = {
            f"algo.n_step is {self.n_step}: set it to 1": self.n_step > 1,
            "algo.dynamics predicts single steps: set it to null": self.get("dynamics", None)
            is not None,
            "with algo.rnn.enabled all steps of a sequence have the same discount: set it to false": (
                (memory := self._memory()) is not None and memory.enabled
            ),
            f"observation.modalities lacks {DURATION}: list it in obs.low_dim": DURATION
            not in config.all_obs_keys,
        }
        return [
            f"train.online.wrappers contains 'repeated', but {words}"
            for words, holds in found.items()
            if holds
        ]

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Return the following steps that auxiliaries need; None if the algorithm's transitions suffice."""
        wanted = super().following(config)
        enough = wanted is None or (wanted.number == 1 and self.n_step == 1)
        return None if enough else wanted

    def auxiliary_conflicts(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with ``auxiliary``."""
        problems = super().auxiliary_conflicts(config)
        if self.n_step > 1 and any(entry.reward > 0 for entry in self.auxiliary.values()):
            problems.append(
                f"algo.n_step is {self.n_step}, but algo.auxiliary gives rewards of single steps: set it to 1"
            )
        if self.following(config) is not None and config.train.online.hindsight.enabled:
            problems.append(
                "algo.auxiliary learns from several steps, whose goals train.online.hindsight.enabled would change one "
                "by one: set it to false, or the steps of the auxiliaries and algo.n_step to 1"
            )
        rnn = self._memory()
        if self.auxiliary and rnn is not None and rnn.enabled:
            problems.append(
                "algo.auxiliary sees observations, but with algo.rnn.enabled batches hold recurrent features: disable "
                "one of them"
            )
        return problems


def extrinsic_problems(section: Any) -> list[str]:
    """Return a message if ``extrinsic``, the weight of the environment's reward, cannot have its value."""
    weight = section.extrinsic
    if weight == 1.0:
        return []
    if section.rewards:
        return [
            f"algo.extrinsic is {weight:g}, but algo.rewards have weights of their own: set it to 1"
        ]
    if getattr(section, "reward_free", False) or getattr(section, "reward_source", None):
        return [
            f"algo.extrinsic is {weight:g}, but the environment's reward is not used: set it to 1"
        ]
    if weight == 0 and not any(entry.reward > 0 for entry in section.auxiliary.values()):
        return [
            "algo.extrinsic is 0, but no entry of algo.auxiliary has a reward: raise one of them"
        ]
    return []


def needs_demonstrations(config: BaseConfig) -> list[str]:
    """Return messages for settings that do not suit a reward source which compares demonstrations with policy steps."""
    online, section, problems = config.train.online, config.algo, []
    if not online.enabled or not 0 < online.demo_ratio < 1:
        problems.append(
            f"train.online.demo_ratio: {config.algo_name} needs demonstrations beside replayed steps: enable "
            "train.online, and set demo_ratio between 0 and 1, such as 0.5"
        )
    if section["n_step"] != 1:
        problems.append(
            f"algo.n_step is {section['n_step']}, but {config.algo_name} computes rewards of single steps: set it to 1"
        )
    if section["rnn"]["enabled"]:
        problems.append(
            f"algo.rnn.enabled is true, but demonstrations, which {config.algo_name} needs, have no recurrent states: "
            "set it to false"
        )
    return problems


def wants_online(config: BaseConfig) -> list[str]:
    """Return a message if ``train.online`` is disabled, for an algorithm that only learns online; else nothing."""
    if config.train.online.enabled:
        return []
    return [f"train.online.enabled is false, but {config.algo_name} learns online: set it to true"]


class DistributionalConfig(Section):
    """Critics that predict a distribution of returns."""

    enabled: bool = Field(
        False,
        description="predict a distribution of returns over atoms within critic.value_bounds, instead of the mean "
        "return",
    )
    num_atoms: int = Field(
        51, ge=2, description="number of atoms, from the lower to the upper bound"
    )


class BCQCriticConfig(CriticConfig):
    """Critics, and numbers of sampled actions from which the best is chosen."""

    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(weight=0.75))
    num_action_samples: int = Field(
        10,
        ge=1,
        description="number of sampled next actions per transition; the target uses the largest of their values",
    )
    num_action_samples_rollout: int = Field(
        100,
        ge=1,
        description="number of sampled actions from which the acting policy chooses the best",
    )
    distributional: DistributionalConfig = Field(DistributionalConfig())


class ActionSamplerConfig(Section):
    """Model of the data's actions: a mixture if ``gmm`` is enabled, else a VAE."""

    actor_layer_dims: LayerDims = Field(
        (1024, 1024), description="widths of the hidden layers of the mixture model, used with gmm"
    )
    gmm: GMMConfig = Field(GMMConfig())
    vae: VAEConfig = Field(VAEConfig(enabled=True))
    freeze_encoder_epoch: int = Field(
        -1, ge=-1, description="epoch from which the encoder of the VAE is frozen; -1: never"
    )


class PerturbationConfig(ActorConfig):
    """Actor that slightly improves the sampled actions."""

    enabled: bool = Field(False, description="improve sampled actions by a learned perturbation")
    perturbation_scale: float = Field(
        0.05,
        gt=0,
        description="largest perturbation of each number of an action, in normalized units",
    )


class BCQConfig(ActorCriticConfig):
    """Options of algorithm ``bcq``, under ``algo``."""

    optim_params: Networks = networks(
        "BCQOptimParams", critic=1e-3, action_sampler=1e-3, actor=1e-3
    )
    critic: BCQCriticConfig = Field(BCQCriticConfig())
    action_sampler: ActionSamplerConfig = Field(ActionSamplerConfig())
    actor: PerturbationConfig = Field(PerturbationConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        sampler, critic = self.action_sampler, self.critic
        if not (sampler.gmm.enabled or sampler.vae.enabled):
            problems.append(
                "algo.action_sampler: neither vae nor gmm is enabled, so there are no actions to choose from: enable "
                "one of them"
            )
        if critic.distributional.enabled and critic.value_bounds is None:
            problems.append(
                "algo.critic.value_bounds is null, but algo.critic.distributional needs the range of returns: set it, "
                "as to [0, 1]"
            )
        if critic.value_bounds is not None and critic.value_bounds[0] >= critic.value_bounds[1]:
            problems.append(
                f"algo.critic.value_bounds is {list(critic.value_bounds)}: the first must be below the second"
            )
        return problems


class ChunkCriticsConfig(ActorCriticConfig):
    """Base class of the sections of algorithms whose critics evaluate action chunks."""

    values_chunks = True
    n_step: int = Field(
        5,
        ge=1,
        description="K: number of actions in a chunk. All K are executed, and a TD target sums K rewards",
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request transitions of K steps with all K actions."""
        needs = super().data_needs(config)
        assert needs.transitions is not None
        return replace(needs, transitions=replace(needs.transitions, chunks=True))


# ---- flows -------------------------------------------------------------------------------------------------------


FLOW_WIDTHS = (512, 512, 512, 512)
"""Widths of the hidden layers in the published code of flow Q-learning."""


class FlowFieldConfig(Section):
    """Flow policy that clones the data."""

    layer_dims: LayerDims = Field(FLOW_WIDTHS, description="widths of the hidden layers")
    num_steps: int = Field(10, ge=1, description="number of Euler steps from noise to an action")


class FlowChoiceConfig(FlowFieldConfig):
    """Flow policy that clones the data; it acts with the sample of the largest value among several."""

    num_candidates: int = Field(
        32,
        ge=1,
        description="N: number of samples of the flow, of which the policy takes the one with the largest value",
    )


class FlowCriticConfig(CriticConfig):
    """Critics whose hidden layers have a GELU and then a layer normalization."""

    activation: ClassVar[Activation] = "gelu"
    layer_dims: LayerDims = Field(FLOW_WIDTHS, description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each GELU")


class MeanCriticConfig(FlowCriticConfig):
    """Ensemble of critics whose mean is used as the value (weight 0.5 for two critics)."""

    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(weight=0.5))
