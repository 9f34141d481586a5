"""Sections of the configuration that algorithms with critics share; keys as in robomimic where it has them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from imitate.algo.base.recurrence import ReplayedMemoryConfig
from imitate.algo.base.sections import GMMConfig, LayerDims, VAEConfig
from imitate.algo.slots.auxiliary.auxiliary import AuxiliariesConfig
from imitate.config import AlgoSection, BaseConfig, DataNeeds, OptimizerConfig, Section, Transitions


class StagedOptimizerConfig(OptimizerConfig):
    """An optimizer that may begin late or end early."""

    start_epoch: int = Field(-1, ge=-1, description="first epoch in which it learns; -1: the first")
    end_epoch: int = Field(-1, ge=-1, description="epoch before which it stops; -1: never")


def optimizer(rate: float, **learning_rate: Any) -> StagedOptimizerConfig:
    """A default optimizer with this learning rate."""
    return StagedOptimizerConfig.model_validate(
        {"learning_rate": {"initial": rate, **learning_rate}}
    )


class EnsembleConfig(Section):
    """Several critics, of which the least hopeful is believed."""

    n: int = Field(2, ge=1, description="critics")
    weight: float = Field(
        1.0,
        ge=0,
        le=1,
        description="targets are weight * least + (1 - weight) * greatest of the critics' values",
    )
    shared_encoder: bool = Field(
        True, description="one encoder of images for all critics; false: one each, as in robomimic"
    )


class CriticConfig(Section):
    """Critics: values of actions."""

    layer_dims: LayerDims = Field((300, 400), description="hidden layers")
    layer_norm: bool = Field(False, description="layer normalization after each ReLU")
    ensemble: EnsembleConfig = Field(EnsembleConfig())
    use_huber: bool = Field(False, description="smooth L1 rather than squared error")
    max_gradient_norm: float | None = Field(
        None, gt=0, description="gradients are scaled down to this norm; null: train.max_grad_norm"
    )
    value_bounds: tuple[float, float] | None = Field(
        None, description="lowest and highest value, held by a tanh; null: none"
    )


class ActorNetCommonConfig(Section):
    """Settings that Gaussian and mixture actors share."""

    std_activation: Literal["softplus", "exp"] = Field("softplus", description="raw to std")
    low_noise_eval: bool = Field(True, description="act without the learned noise in evaluation")
    use_tanh: bool = Field(False, description="squash samples by tanh rather than means")


class ActorGaussianConfig(Section):
    """Diagonal Gaussian actor."""

    init_last_fc_weight: float | None = Field(
        0.001, gt=0, description="the last layer begins uniform in +- this; null: as torch does"
    )
    init_std: float = Field(0.3, gt=0, description="standard deviation at the start")
    min_std: float = Field(0.007, gt=0, description="floor of the standard deviation")
    max_std: float = Field(7.5, gt=0, description="ceiling of the standard deviation")
    fixed_std: bool = Field(False, description="the standard deviation stays as it begins")
    state_independent_std: bool = Field(
        False, description="one learned standard deviation for all states"
    )


class ActorGMMConfig(Section):
    """Mixture of Gaussians actor."""

    num_modes: int = Field(5, ge=1, description="modes of the mixture")
    min_std: float = Field(1e-4, gt=0, description="floor of the standard deviation")


class ActorNetConfig(Section):
    """Distribution of a stochastic actor."""

    type: Literal["gaussian", "gmm"] = Field("gaussian", description="kind of distribution")
    common: ActorNetCommonConfig = Field(ActorNetCommonConfig())
    gaussian: ActorGaussianConfig = Field(ActorGaussianConfig())
    gmm: ActorGMMConfig = Field(ActorGMMConfig())


class ActorConfig(Section):
    """An actor."""

    layer_dims: LayerDims = Field((300, 400), description="hidden layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after each hidden layer")
    max_gradient_norm: float | None = Field(
        None, gt=0, description="gradients are scaled down to this norm; null: train.max_grad_norm"
    )


class DelayedActorConfig(ActorConfig):
    """A deterministic actor that is updated less often than its critics, and the noise of target actions (TD3)."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    update_freq: int = Field(
        2, ge=1, description="the actor and all targets follow every so many updates of the critics"
    )
    noise_std: float = Field(0.2, ge=0, description="noise of target actions, normalized units")
    noise_clip: float = Field(0.5, ge=0, description="bound of that noise")


class StochasticActorConfig(ActorConfig):
    """An actor with a distribution over actions."""

    net: ActorNetConfig = Field(ActorNetConfig())


class ActorCriticConfig(AlgoSection):
    """Base of the section of each algorithm that learns values from transitions."""

    needs_next_actions: ClassVar[bool] = False
    reward_free: ClassVar[bool] = False
    """The algorithm makes its rewards; demonstrations need none."""

    discount: float = Field(0.99, ge=0, lt=1, description="of a reward one step later")
    n_step: int = Field(1, ge=1, description="steps whose rewards are summed before values count")
    target_tau: float = Field(
        0.005, gt=0, le=1, description="target networks move this fraction per update"
    )
    infinite_horizon: bool = Field(
        False, description="a reward at a terminal counts 1 / (1 - discount) times"
    )
    auxiliary: AuxiliariesConfig = Field(
        AuxiliariesConfig(), description="auxiliary losses and intrinsic rewards by name"
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Transitions; images of the frames up to the sample's step, the next ones come with the transition.

        With a memory (key ``rnn``) sequences of them.
        """
        needs = DataNeeds(
            transitions=Transitions(
                discount=self.discount,
                n_step=self.n_step,
                next_actions=self.needs_next_actions,
                infinite_horizon=self.infinite_horizon,
            ),
            observed_steps=config.train.frame_stack,
            environment_rewards=not self.reward_free,
        )
        rnn = self._memory()
        return needs if rnn is None else rnn.data_needs(needs, config)

    def _memory(self) -> ReplayedMemoryConfig | None:
        """The key ``rnn``, where the section has it."""
        memory: ReplayedMemoryConfig | None = self.get("rnn", None)
        return memory

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained."""
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
        return problems + self._auxiliary_conflicts(config)

    def _auxiliary_conflicts(self, config: BaseConfig) -> list[str]:
        """Settings that do not go with ``auxiliary``."""
        problems = []
        if self.n_step > 1 and any(entry.reward > 0 for entry in self.auxiliary.values()):
            problems.append(
                f"algo.n_step is {self.n_step}, but rewards of algo.auxiliary are of one step: set it to 1"
            )
        rnn = self._memory()
        if self.auxiliary and rnn is not None and rnn.enabled:
            problems.append(
                "algo.auxiliary sees observations, but with algo.rnn.enabled batches hold recurrent features: set one "
                "of them off"
            )
        return problems


def needs_demonstrations(config: BaseConfig) -> list[str]:
    """Conflicts of a training whose rewards tell demonstrations from replayed steps."""
    online, section, problems = config.train.online, config.algo, []
    if not online.enabled or not 0 < online.demo_ratio < 1:
        problems.append(
            f"train.online.demo_ratio: {config.algo_name} tells demonstrations from replayed steps: enable "
            "train.online, with a share between 0 and 1, such as 0.5"
        )
    if section["n_step"] != 1:
        problems.append(
            f"algo.n_step is {section['n_step']}, but {config.algo_name}'s rewards are of one step: set it to 1"
        )
    if section["rnn"]["enabled"]:
        problems.append(
            f"algo.rnn.enabled is true, but demonstrations, which {config.algo_name} needs, have no recurrent states: "
            "set it to false"
        )
    return problems


def wants_online(config: BaseConfig) -> list[str]:
    """The conflict of an online algorithm with a training that is not online, if there is one."""
    if config.train.online.enabled:
        return []
    return [f"train.online.enabled is false, but {config.algo_name} learns online: set it to true"]


class BCQOptimParams(Section):
    """Optimizers by network."""

    critic: StagedOptimizerConfig = Field(optimizer(1e-3))
    action_sampler: StagedOptimizerConfig = Field(optimizer(1e-3))
    actor: StagedOptimizerConfig = Field(optimizer(1e-3))


class DistributionalConfig(Section):
    """Critics that predict a distribution over returns."""

    enabled: bool = Field(False, description="distributions over the atoms of critic.value_bounds")
    num_atoms: int = Field(51, ge=2, description="values between the bounds, both included")


class BCQCriticConfig(CriticConfig):
    """The critics."""

    ensemble: EnsembleConfig = Field(EnsembleConfig(weight=0.75))
    num_action_samples: int = Field(
        10, ge=1, description="next actions per transition; the target takes the best of them"
    )
    num_action_samples_rollout: int = Field(
        100, ge=1, description="actions from which the policy takes the best"
    )
    distributional: DistributionalConfig = Field(DistributionalConfig())


class ActionSamplerConfig(Section):
    """The model of the data's actions: a mixture where ``gmm`` is enabled, else a VAE."""

    actor_layer_dims: LayerDims = Field((1024, 1024), description="gmm: hidden layers")
    gmm: GMMConfig = Field(GMMConfig())
    vae: VAEConfig = Field(VAEConfig(enabled=True))
    freeze_encoder_epoch: int = Field(
        -1, ge=-1, description="vae: epoch from which its encoder no longer learns; -1: never"
    )


class PerturbationConfig(ActorConfig):
    """An actor that improves the sampled actions a little."""

    enabled: bool = Field(False, description="perturb sampled actions")
    perturbation_scale: float = Field(0.05, gt=0, description="largest change of an action")


class BCQConfig(ActorCriticConfig):
    """Section ``algo`` of algorithm ``bcq``."""

    optim_params: BCQOptimParams = Field(BCQOptimParams())
    critic: BCQCriticConfig = Field(BCQCriticConfig())
    action_sampler: ActionSamplerConfig = Field(ActionSamplerConfig())
    actor: PerturbationConfig = Field(PerturbationConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained."""
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
                f"algo.critic.value_bounds is {list(critic.value_bounds)}: the first is to be below the second"
            )
        return problems
