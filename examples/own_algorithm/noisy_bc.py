"""Behavior cloning from noisy observations: a complete example of your own algorithm.

The policy f learns the demonstrated action a from an observation s with noise added to its features, so that it
does the same in states close to those of the demonstrations:

    |f(s + noise) - a|^2, noise ~ N(0, noise^2)      -> NoisyBC._loss
"""

import torch
from pydantic import Field
from torch import nn

from imitate import Algo, register_algo_factory_func
from imitate.algo.base.algo import PolicyStep
from imitate.algo.base.sections import LayerDims
from imitate.config import AlgoSection
from imitate.config.optimizer import Networks, adam, networks
from imitate.models.mlp import MLP


class NoisyBCConfig(AlgoSection):
    """Section ``algo``: every key with its type, default and meaning; `imitate config keys noisy_bc` prints them."""

    optim_params: Networks = networks(policy=adam(1e-4))
    layer_dims: LayerDims = Field((256, 256), description="hidden layers, ReLU after each")
    noise: float = Field(
        0.05, ge=0, description="standard deviation of the noise, relative to normalized values"
    )


@register_algo_factory_func("noisy_bc", section=NoisyBCConfig)
def algo_config_to_class(algo_config):
    """Return the class for a section, and further arguments of its constructor."""
    return NoisyBC, {}


class NoisyBC(Algo):
    """Deterministic policy; an algorithm needs only these four methods."""

    def _create_networks(self):
        encoder = self._create_encoder()  # images, vectors and goals, as in section `observation`
        mlp = MLP(encoder.output_dim, self.algo_config.layer_dims)
        head = nn.Linear(mlp.output_dim, self.ac_dim)
        self.nets = nn.ModuleDict(
            {"policy": nn.ModuleDict({"encoder": encoder, "mlp": mlp, "head": head})}
        )

    def _select_batch(self, batch):
        # Normalized tensors (B, T, ...) on the device; the policy gets the first frame_stack steps.
        last = self.frame_stack - 1
        steps = slice(0, self.frame_stack) if last else 0
        obs = {key: value[:, steps] for key, value in batch["obs"].items()}
        return {"obs": obs, "goal_obs": batch.get("goal_obs"), "actions": batch["actions"][:, last]}

    def _loss(self, batch):
        noise = self.algo_config.noise if self.nets.training else 0.0
        predicted = self._predict(batch["obs"], batch["goal_obs"], noise)
        loss = (predicted - batch["actions"]).square().mean()
        return loss, {"Loss": loss}

    def _act(self, obs, state, goal, *, explore, generator):
        return PolicyStep(self._predict(obs, goal), state, {})

    def _predict(self, obs, goal, noise=0.0):
        policy = self.active_nets["policy"]
        features = policy["encoder"](obs, goal)
        if noise:
            features = features + noise * torch.randn_like(features)
        return policy["head"](policy["mlp"](features))
