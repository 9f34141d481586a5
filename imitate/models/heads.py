"""Action heads, which map features to a distribution over actions.

The distributions are written as plain arithmetic. torch.distributions returns the same numbers and, for the same seed,
the same samples, but takes several times as long per call (the tests compare both).
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError
from imitate.functional.losses import cosine_loss, masked_mean, step_weights
from imitate.functional.sampling import draw_class, draw_normal, pick_class
from imitate.models.mlp import FullPrecisionLinear

LOW_NOISE_STD = 1e-4
"""Standard deviation with which policies act in evaluation if ``low_noise_eval`` is set."""

_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_MEAN_LIMIT = 9.0
_TANH_EPS = 1e-6

StdActivation = Literal["softplus", "exp"]


class ActionDistribution(ABC):
    """Distribution over actions ``(*B, A)`` with the batch shape of the features."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Mean action ``(*B, A)``."""

    @abstractmethod
    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Compute the log-density of ``(*B, A)`` actions, summed over A: ``(*B,)``.

        Dimensions are weighted by ``weight`` (*B, A), which is 0 for padding.
        """

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``(*B, A)``, without gradient."""

    def restricted(self, allowed: Tensor) -> Self:
        """Restrict the distribution to the choices that are ``allowed``, (*B, C) bool.

        Raises:
            ConfigError: actions are not choices.
        """
        raise ConfigError(
            "observation.modalities.obs.mask: actions are continuous, so no choice can be masked: leave the mask out"
        )


class Deterministic(ActionDistribution):
    """Point distribution. Its log-density is 0 at the point and minus infinity elsewhere."""

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean

    @property
    def mean(self) -> Tensor:
        """The point ``(*B, A)``."""
        return self._mean

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return 0 where actions equal the point, else -inf; this has no useful gradient for a loss."""
        equal = actions == self._mean if weight is None else (actions == self._mean) | (weight == 0)
        equal = equal.all(-1)
        return torch.where(equal, 0.0, -math.inf)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the point ``(*B, A)``, because there is no randomness."""
        return self._mean.detach()


class Gaussian(ActionDistribution):
    """Diagonal Gaussian.

    Attributes:
        stds: (*B, A) standard deviations.
    """

    def __init__(self, mean: Tensor, stds: Tensor) -> None:
        self._mean = mean
        self.stds = stds

    @property
    def mean(self) -> Tensor:
        """Mean action ``(*B, A)``."""
        return self._mean

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-densities ``(*B,)`` of actions ``(*B, A)``."""
        return _normal_log_prob(actions, self._mean, self.stds, weight)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``(*B, A)`` from the normal distributions, without gradient."""
        return draw_normal(self._mean, self.stds, generator)

    def entropy(self) -> Tensor:
        """Return the entropy ``(*B,)`` in nats."""
        return (self.stds.log() + (0.5 + _LOG_SQRT_TWO_PI)).sum(-1)

    def draw(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample N actions of each distribution with gradients, ``(*B, N, A)``, and their log-densities ``(*B, N)``."""
        mean, stds = self._mean.unsqueeze(-2), self.stds.unsqueeze(-2)
        shape = (*self._mean.shape[:-1], num_samples, self._mean.shape[-1])
        noise = torch.randn(shape, generator=generator, device=mean.device, dtype=mean.dtype)
        density = -0.5 * noise.square() - stds.log() - _LOG_SQRT_TWO_PI
        return mean + stds * noise, density.sum(-1)


class GaussianMixture(ActionDistribution):
    """Mixture of M diagonal Gaussians.

    Attributes:
        means: (*B, M, A).
        stds: (*B, M, A).
        logits: (*B, M) normalized logits: logarithms of the weights.
    """

    def __init__(self, means: Tensor, stds: Tensor, logits: Tensor) -> None:
        self.means = means
        self.stds = stds
        self.logits = logits.log_softmax(-1)

    @property
    def mean(self) -> Tensor:
        """Mean over the modes, which may be far from every mode."""
        return (self.logits.exp().unsqueeze(-1) * self.means).sum(-2)

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-densities ``(*B,)`` of actions ``(*B, A)``."""
        per_mode = _normal_log_prob(
            actions.unsqueeze(-2),
            self.means,
            self.stds,
            None if weight is None else weight.unsqueeze(-2),
        )
        return torch.logsumexp(per_mode + self.logits, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample a mode and an action of every mode; return the action of the sampled mode (as MixtureSameFamily)."""
        mode = draw_class(self.logits, generator)
        return pick_class(draw_normal(self.means, self.stds, generator), mode)


class TanhDistribution(ActionDistribution):
    """Distribution of tanh(x), where x is distributed as ``base``, a Gaussian or a mixture.

    The inverse of tanh clamps 1 +- a at 1e-6, and the correction of the density is log(1 - a^2 + 1e-6), so that a = +-1
    has a finite density.
    """

    def __init__(self, base: Gaussian | GaussianMixture) -> None:
        self.base = base

    @property
    def mean(self) -> Tensor:
        """Tanh of the base's mean; for a Gaussian this is the median of each dimension."""
        return self.base.mean.tanh()

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-densities ``(*B,)`` of actions ``(*B, A)`` in [-1, 1]."""
        above = (1.0 + actions).clamp(min=_TANH_EPS)
        below = (1.0 - actions).clamp(min=_TANH_EPS)
        before_tanh = 0.5 * (above / below).log()
        correction = (1.0 - actions.square() + _TANH_EPS).log()
        if weight is not None:
            correction = correction * weight
        return self.base.log_prob(before_tanh, weight) - correction.sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return tanh of a sample of the base."""
        return self.base.sample(generator).tanh()

    def draw(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample with gradients like :meth:`Gaussian.draw`; the base must be a Gaussian.

        The density is computed before the tanh, where it is exact: log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        if not isinstance(self.base, Gaussian):
            raise TypeError(
                f"samples with gradients need a tanh of a Gaussian, but this is a tanh of a {type(self.base).__name__}"
            )
        before_tanh, log_prob = self.base.draw(num_samples, generator)
        slope = 2.0 * (math.log(2.0) - before_tanh - nn.functional.softplus(-2.0 * before_tanh))
        return before_tanh.tanh(), log_prob - slope.sum(-1)


class ActionHead(nn.Module, ABC):
    """Linear maps of features ``(*B, D)`` to a distribution over actions in [-1, 1]."""

    @abstractmethod
    def forward(self, features: Tensor, *, low_noise: bool = False) -> ActionDistribution:
        """Return the distribution; with ``low_noise`` its standard deviation is :data:`LOW_NOISE_STD`."""

    @abstractmethod
    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return actions ``(*B, A)``: with the learned noise if ``explore``, else as in evaluation."""

    def loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of behavior cloning: negative log-likelihood of demonstrated actions per step.

        Args:
            features: (*B, D).
            actions: (*B, A), or chunks (*B, K, A), whose K A values the head predicts together.
            mask: (*B) or (*B, K), false for padding, or None if there is no padding.
            weight: (*B) or (*B, K) weight of each step; None for equal weights.

        Returns:
            The loss, and further scalars to log.
        """
        distribution = self(features)
        if actions.dim() == features.dim():
            mean = masked_mean(distribution.log_prob(actions), step_weights(mask, weight))
            return -mean, {"Log_Likelihood": mean}
        real = torch.ones_like(actions[..., 0]) if mask is None else mask.to(actions)
        dims = real.repeat_interleave(actions.shape[-1], dim=-1)
        log_prob, steps = distribution.log_prob(actions.flatten(-2), dims), real.sum(-1)
        # the head gives one density for a whole chunk, so the chunk is weighted by the mean weight of its steps
        if weight is not None:
            counts = (weight * real).sum(-1) / steps.clamp(min=1.0)
            log_prob, steps = log_prob * counts, steps * counts
        mean = log_prob.sum() / steps.sum()
        return -mean, {"Log_Likelihood": mean}


class DeterministicHead(ActionHead):
    """Head that returns tanh of a linear map.

    Args:
        input_dim: number of features.
        ac_dim: action dimensions.
        l2_weight: weight of the squared error in the loss.
        l1_weight: weight of the smooth L1 error.
        cos_weight: weight of the cosine loss of the first 3 dimensions of an action.
    """

    def __init__(
        self,
        input_dim: int,
        ac_dim: int,
        *,
        l2_weight: float = 1.0,
        l1_weight: float = 0.0,
        cos_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.action = FullPrecisionLinear(input_dim, ac_dim)
        self.l2_weight = l2_weight
        self.l1_weight = l1_weight
        self.cos_weight = cos_weight

    def forward(self, features: Tensor, *, low_noise: bool = False) -> Deterministic:
        """Return the distribution; ``low_noise`` has no effect."""
        return Deterministic(self.action(features).tanh())

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return tanh of the linear map, without noise."""
        action: Tensor = self.action(features)
        return action.tanh()

    def loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted sum of the regression errors, each averaged over steps.

        The arguments are those of :meth:`ActionHead.loss`.
        """
        predicted, counts = self(features).mean, step_weights(mask, weight)
        if actions.dim() > features.dim():
            predicted = predicted.reshape(actions.shape)
        losses = {"L2_Loss": (self.l2_weight, (predicted - actions).square().mean(-1))}
        if self.l1_weight > 0:
            error = nn.functional.smooth_l1_loss(predicted, actions, reduction="none")
            losses["L1_Loss"] = (self.l1_weight, error.mean(-1))
        if self.cos_weight > 0:
            error = cosine_loss(predicted[..., :3], actions[..., :3])
            losses["Cosine_Loss"] = (self.cos_weight, error)
        info = {name: masked_mean(error, counts) for name, (_, error) in losses.items()}
        loss = torch.stack([scale * info[name] for name, (scale, _) in losses.items()]).sum()
        return loss, info


class GaussianHead(ActionHead):
    """Diagonal Gaussian: mean clamped to +-9, then tanh; std clamped to [min_std, max_std].

    The std is ``softplus(x) * init_std / softplus(0)``, or ``exp(x)``, or ``init_std`` if fixed, or a learned parameter
    with the initial value ``init_std``.

    Args:
        input_dim: number of features.
        ac_dim: action dimensions.
        init_std: standard deviation if the linear map returns 0.
        min_std: smallest standard deviation.
        max_std: largest standard deviation.
        fixed_std: keep the std at ``init_std``.
        state_independent_std: learn one std for all states, by its logarithm.
        std_activation: function from the linear map's output to the std.
        low_noise_eval: act with the mean instead of a sample in evaluation.
        use_tanh: apply tanh to samples (and correct the density for it) instead of to the mean.
        init_last_fc_weight: initialize weights and biases uniformly between minus and plus this number; None to
            initialize as torch does.
    """

    def __init__(
        self,
        input_dim: int,
        ac_dim: int,
        *,
        init_std: float = 0.1,
        min_std: float = 0.01,
        max_std: float = 7.5,
        fixed_std: bool = False,
        state_independent_std: bool = False,
        std_activation: StdActivation = "softplus",
        low_noise_eval: bool = True,
        use_tanh: bool = False,
        init_last_fc_weight: float | None = None,
    ) -> None:
        super().__init__()
        self.mean = FullPrecisionLinear(input_dim, ac_dim)
        apart = fixed_std or state_independent_std
        self.scale = None if apart else FullPrecisionLinear(input_dim, ac_dim)
        self.init_std = init_std
        self.std_limits = (min_std, max_std)
        self.std_activation = std_activation
        self.low_noise_eval = low_noise_eval
        self.use_tanh = use_tanh
        if init_last_fc_weight is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -init_last_fc_weight, init_last_fc_weight)
        self.log_std: nn.Parameter | None = None
        if state_independent_std and not fixed_std:
            self.log_std = nn.Parameter(torch.full((ac_dim,), math.log(init_std)))

    def forward(self, features: Tensor, *, low_noise: bool = False) -> Gaussian | TanhDistribution:
        """Map features ``(*B, D)`` to a distribution with batch shape ``(*B)``."""
        mean = self._mean(features)
        stds = torch.full_like(mean, LOW_NOISE_STD) if low_noise else self._stds(features, mean)
        base = Gaussian(mean, stds)
        return TanhDistribution(base) if self.use_tanh else base

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return a sample if ``explore`` is true or ``low_noise_eval`` is false, else the mean."""
        if explore or not self.low_noise_eval:
            return self.forward(features).sample(generator)
        mean = self._mean(features)
        return mean.tanh() if self.use_tanh else mean

    def _mean(self, features: Tensor) -> Tensor:
        mean: Tensor = self.mean(features).clamp(-_MEAN_LIMIT, _MEAN_LIMIT)
        return mean if self.use_tanh else mean.tanh()

    def _stds(self, features: Tensor, mean: Tensor) -> Tensor:
        if self.log_std is not None:
            stds = self.log_std.exp().expand_as(mean)
        elif self.scale is None:
            stds = torch.full_like(mean, self.init_std)
        elif self.std_activation == "softplus":
            stds = nn.functional.softplus(self.scale(features)) * (self.init_std / math.log(2.0))
        else:
            stds = self.scale(features).exp()
        low, high = self.std_limits
        return torch.clamp(stds, low, high)


class GMMHead(ActionHead):
    """Mixture of diagonal Gaussians: tanh of means, std ``softplus(x)`` or ``exp(x)`` plus min_std.

    Args:
        input_dim: number of features.
        ac_dim: action dimensions.
        num_modes: M, number of modes.
        min_std: added to each standard deviation.
        std_activation: function from the linear map's output to the std.
        low_noise_eval: in evaluation sample the chosen mode with the std :data:`LOW_NOISE_STD`.
        use_tanh: apply tanh to samples (and correct the density for it) instead of to the means.
    """

    def __init__(
        self,
        input_dim: int,
        ac_dim: int,
        *,
        num_modes: int = 5,
        min_std: float = 1e-4,
        std_activation: StdActivation = "softplus",
        low_noise_eval: bool = True,
        use_tanh: bool = False,
    ) -> None:
        super().__init__()
        self.mean = FullPrecisionLinear(input_dim, num_modes * ac_dim)
        self.scale = FullPrecisionLinear(input_dim, num_modes * ac_dim)
        self.logits = FullPrecisionLinear(input_dim, num_modes)
        self.shape = (num_modes, ac_dim)
        self.min_std = min_std
        self.std_activation = std_activation
        self.low_noise_eval = low_noise_eval
        self.use_tanh = use_tanh

    def forward(
        self, features: Tensor, *, low_noise: bool = False
    ) -> GaussianMixture | TanhDistribution:
        """Map features ``(*B, D)`` to a distribution with batch shape ``(*B)``."""
        means = self.mean(features).unflatten(-1, self.shape)
        if not self.use_tanh:
            means = means.tanh()
        if low_noise:
            stds = torch.full_like(means, LOW_NOISE_STD)
        else:
            raw = self.scale(features).unflatten(-1, self.shape)
            stds = (
                nn.functional.softplus(raw) if self.std_activation == "softplus" else raw.exp()
            ) + self.min_std
        base = GaussianMixture(means, stds, self.logits(features))
        return TanhDistribution(base) if self.use_tanh else base

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return a sample; in evaluation with less noise, but the mode of the mixture is always sampled."""
        low_noise = self.low_noise_eval and not explore
        return self.forward(features, low_noise=low_noise).sample(generator)


def _normal_log_prob(x: Tensor, mean: Tensor, stds: Tensor, weight: Tensor | None = None) -> Tensor:
    density = -0.5 * ((x - mean) / stds).square() - stds.log() - _LOG_SQRT_TWO_PI
    return (density if weight is None else density * weight).sum(-1)
