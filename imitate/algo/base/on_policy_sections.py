"""Sections of the configuration for algorithms that learn from whole rollouts."""

from typing import ClassVar, Literal

from pydantic import Field

from imitate.algo.base.rl_sections import extrinsic_problems, wants_online
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.entropy_rule import EntropyRuleConfig
from imitate.algo.slots.memory import MemoryConfig
from imitate.algo.slots.reward_source import RewardSource
from imitate.algo.slots.reward_weights import RewardsConfig, RewardWeightsConfig, refusals
from imitate.config import AlgoSection, BaseConfig, Section
from imitate.config.data_needs import FollowingSteps
from imitate.config.optimizer import Networks, networks


class OnPolicyNetConfig(Section):
    """Networks of the policy and its value, which share the encoder."""

    layer_dims: LayerDims = Field(
        (64, 64), description="widths of the hidden layers of policy and value, each"
    )
    activation: Literal["tanh", "relu"] = Field(
        "tanh", description="activation after each hidden layer"
    )
    init_std: float = Field(
        1.0, gt=0, description="initial standard deviation of actions, the same in all states"
    )
    orthogonal_init: bool = Field(True, description="initialize weights orthogonally")


class OnPolicyConfig(AlgoSection):
    """Base class of the sections of algorithms that learn from whole rollouts."""

    supports_memory: ClassVar[bool] = True
    """True if ``rnn`` may be enabled."""
    supports_popart: ClassVar[bool] = True
    """True if ``popart`` may be set."""
    supports_rules: ClassVar[bool] = True
    """True if ``entropy.rule`` and ``trust_region`` may be set."""
    reward_source: ClassVar[type[RewardSource] | None] = None
    """Source of rewards that replace the environment's."""
    value_per_reward: ClassVar[bool] = True
    learns_rewards = True

    optim_params: Networks = networks(
        "OnPolicyOptimParams", "Optimizer of policy and value together.", policy=3e-4
    )
    num_choices: int | None = Field(
        None,
        ge=0,
        description="number of choices of a discrete action; 0: continuous; null: taken from the environment",
    )
    net: OnPolicyNetConfig = Field(OnPolicyNetConfig())
    rnn: MemoryConfig = Field(MemoryConfig())
    discount: float = Field(0.99, ge=0, le=1, description="discount factor per environment step")
    trace: float = Field(
        0.95,
        ge=0,
        le=1,
        description="lambda of generalized advantage estimation: 0 uses one-step TD errors, 1 whole returns",
    )
    rollout_epochs: int = Field(1, ge=1, description="number of passes over each rollout")
    value_weight: float = Field(0.5, ge=0, description="weight of the value loss")
    popart: float | None = Field(
        None,
        gt=0,
        le=1,
        description="PopArt: the value learns returns normalized by running statistics, and each rollout replaces "
        "this fraction of the statistics, such as 0.1; null: the value learns the returns themselves",
    )
    entropy_weight: float = Field(
        0.0, ge=0, description="weight of the policy's entropy, which is rewarded"
    )
    entropy: EntropyRuleConfig = Field(EntropyRuleConfig())
    trust_region: float | None = Field(
        None,
        gt=0,
        description="largest squared distance between the policies before and after an update, per action dimension or "
        "choice, such as 0.01 (TRAC); null: the distance is not limited",
    )
    normalize_advantages: bool = Field(
        True,
        description="normalize the advantages of each minibatch to mean 0 and standard deviation 1",
    )
    extrinsic: float = Field(
        1.0,
        ge=0,
        description="weight of the environment's reward; 0: learn only from the rewards of auxiliaries",
    )
    rewards: RewardsConfig = Field(
        RewardsConfig(),
        description="named rewards, whose weighted sum replaces the environment's reward",
    )
    reward_weights: RewardWeightsConfig = Field(RewardWeightsConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        online = config.train.online
        problems = self.rnn.problems(config) + wants_online(config) + refusals(self, config)
        problems += extrinsic_problems(self)
        if online.repeats:
            problems.append(
                f"train.online.wrappers contains 'repeated', but advantages of {config.algo_name} have one discount "
                "per step: choose sac"
            )
        if not self.supports_rules and (self.trust_region or self.entropy.rule != "fixed"):
            problems.append(
                f"algo.trust_region and algo.entropy.rule: {config.algo_name} does not support them: set them to null "
                "and 'fixed'"
            )
        if self.entropy.rule != "fixed" and self.entropy_weight:
            problems.append(
                f"algo.entropy_weight is {self.entropy_weight:g}, but algo.entropy.rule '{self.entropy.rule}' sets the "
                "weight: set it to 0, and entropy.initial instead"
            )
        slots = bool(self.auxiliary) or self.reward_source is not None
        if config.train.frame_stack > 1 and slots:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but auxiliaries and reward sources of "
                f"{config.algo_name} see single observations: set it to 1"
            )
        if self.rnn.enabled and not self.supports_memory:
            problems.append(
                f"algo.rnn.enabled is true, but {config.algo_name} has no recurrent form: ppo and a2c have one"
            )
        if self.popart is not None and not self.supports_popart:
            problems.append(
                f"algo.popart is {self.popart:g}, but {config.algo_name} does not support it: set it to null"
            )
        if self.rnn.enabled and config.train.seq_length > online.collect_steps:
            problems.append(
                f"train.seq_length is {config.train.seq_length}, but a rollout has train.online.collect_steps "
                f"{online.collect_steps} steps of each environment: raise that, or lower train.seq_length"
            )
        return problems

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Return None: auxiliaries need no following steps, because minibatches contain transitions."""
        return None

    def auxiliary_conflicts(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with ``auxiliary``."""
        problems = super().auxiliary_conflicts(config)
        if self.rnn.enabled and self.auxiliary:
            problems.append(
                "algo.auxiliary learns from shuffled steps, but algo.rnn.enabled makes minibatches of sequences: "
                "disable one of them"
            )
        wanted = self.auxiliary.following
        if wanted is not None and wanted.number > 1:
            problems.append(
                f"algo.auxiliary learns from windows of {wanted.number} steps, but minibatches of {config.algo_name} "
                "are shuffled steps: set its steps to 1"
            )
        return problems


class PPOConfig(OnPolicyConfig):
    """Options of algorithm ``ppo``, under ``algo``; base class of the sections of algorithms with the same losses."""

    tree_defaults = {
        "train": {
            "batch_size": 64,
            "max_grad_norm": 0.5,
            "online": {"enabled": True, "collect_steps": 2048, "warmup_steps": 0},
        }
    }

    rollout_epochs: int = Field(10, ge=1, description="number of passes over each rollout")
    clip: float = Field(0.2, gt=0, description="probability ratios are clipped to 1 +- clip")
    value_clip: float | None = Field(
        None,
        gt=0,
        description="values are clipped to this distance from the values before the update; null: no clipping",
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="updates on a rollout stop when the KL divergence from the collecting policy exceeds 1.5 times "
        "this; null: never",
    )
