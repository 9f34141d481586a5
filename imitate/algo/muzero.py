"""MuZero: tree search in a learned latent model, from an environment or from a file.

Schrittwieser et al., "Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model", Nature 2020
(arXiv:1911.08265), whose targets are searched anew for each batch (MuZero Reanalyze, Schrittwieser et al. 2021,
arXiv:2104.06294); continuous actions: Hubert et al., "Learning and Planning in Complex Action Spaces", ICML 2021
(arXiv:2104.06303); consistency: Ye et al., "Mastering Atari Games with Limited Data", NeurIPS 2021 (arXiv:2111.00210);
policy targets: Grill et al. 2020 (arXiv:2007.12509). With windows o_0, a_0, r_0 ... of real steps, encoder h,
z_0 = h(o_0), z_{k+1} = d(z_k, a_k) for K steps, and h', v' of a copy that follows the networks slowly:

    value        CE(v(z_k), y_k), y_k = sum_{i<n} g^i r_{k+i} + g^n v'(h'(o_{k+n}))     -> n_step_values
    policy       CE(p(z_k), regularized policy of a search from h'(o_k))                -> MuZero.policy_loss
    reward, end  CE(r(z_k, a_k), r_k); binary cross-entropy of the end from z_{k+1}     -> MuZero._loss
    consistency  -cos(P(z_k), h(o_k) projected, without gradient)                       -> MuZero._loss

The loss of step 0 has the weight 1, the loss of each later step 1 / K; the gradient into d is halved at each step.
States after an end are absorbing: y and r are 0, and there is no policy to learn. For continuous actions, C candidate
actions are drawn in each state, a quarter uniformly and the rest from p; their priors in the search are equal.

Departures: all policy targets are searched anew, and none is stored; latent states are products of simplices, not
scaled to [0, 1]; rewards and values are distributions over atoms in symlog units; a search ends where an end is
predicted; value targets bootstrap from the network's values, not from a search's.
"""

from typing import Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.encoding import weight_of_window
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.auxiliary import window_of
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Section, Transitions
from imitate.config.auxiliary import joint_following
from imitate.config.data_needs import FollowingSteps
from imitate.config.optimizer import Networks, networks
from imitate.errors import ConfigError
from imitate.functional.losses import categorical_cross_entropy
from imitate.functional.sampling import draw_class, draw_dirichlet, draw_normal, fill_uniform
from imitate.functional.search import Floats, Leaf, Numbers, Rule, regularized_policy, search
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import masked
from imitate.models.critics import polyak_update_, target_of
from imitate.models.latent import Atoms, SimNorm, normed_mlp

LOG_STD = (-4.0, 1.0)
"""Limits of the policy's log standard deviations, before the tanh of actions."""
LARGEST = 0.999
"""Learned actions are clipped to this magnitude, so that their inverse tanh is finite."""


class SearchConfig(Section):
    """Tree search for an action."""

    simulations: int = Field(25, ge=1, description="number of simulations per decision")
    candidates: int = Field(
        20,
        ge=2,
        description="number of candidate actions that are drawn per state, if actions are continuous",
    )
    c_1: float = Field(1.25, gt=0, description="weight of the policy's prior in the search score")
    c_2: float = Field(
        19652.0, gt=0, description="number of visits above which the weight of the prior grows"
    )
    noise_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="share of Dirichlet noise in the priors of the root, in rollouts",
    )
    noise_alpha: float = Field(0.3, gt=0, description="concentration of the Dirichlet noise")


class MuZeroWeightsConfig(Section):
    """Weights of the losses."""

    value: float = Field(0.25, ge=0, description="weight of the cross-entropy of values")
    policy: float = Field(1.0, ge=0, description="weight of the cross-entropy of the policy")
    reward: float = Field(1.0, ge=0, description="weight of the cross-entropy of rewards")
    ends: float = Field(
        1.0, ge=0, description="weight of the cross-entropy of predicted episode ends"
    )
    consistency: float = Field(
        2.0, ge=0, description="weight of the cosine of predicted and encoded latent states"
    )
    entropy: float = Field(0.0, ge=0, description="weight of the entropy of the policy")


class MuZeroConfig(AlgoSection):
    """Options of algorithm ``muzero``, under ``algo``."""

    tree_defaults = {
        "train": {"batch_size": 128, "max_grad_norm": 10.0, "online": {"enabled": True}},
        "algo": {"temperature": {"schedule": [[0, 1], [0.5, 1], [0.75, 0.5], [1, 0.25]]}},
    }

    optim_params: Networks = networks("MuZeroOptimParams", "The optimizer.", model=1e-3)
    num_choices: int | None = Field(
        None,
        ge=0,
        description="number of discrete actions; 0: actions are continuous; null: as in the environment",
    )
    search: SearchConfig = Field(SearchConfig())
    target_simulations: int = Field(
        10, ge=1, description="number of simulations of the search that computes a policy target"
    )
    temperature: float = Field(
        1.0, gt=0, description="rollouts draw a choice in proportion to visits^(1 / temperature)"
    )
    unroll_steps: int = Field(
        5, ge=1, description="K: number of steps that the model is unrolled from each sample"
    )
    n_step: int = Field(5, ge=1, description="n: number of rewards that a value target sums")
    discount: float = Field(0.99, gt=0, le=1, description="discount factor per step")
    latent_dim: int = Field(64, ge=1, description="size D of a latent state")
    simplex_dim: int = Field(8, ge=2, description="size of each simplex in a latent state")
    encoder_layer_dims: LayerDims = Field(
        (128,), description="widths of the hidden layers of the encoder"
    )
    layer_dims: LayerDims = Field(
        (128,), description="widths of the hidden layers of all networks except the encoder"
    )
    num_atoms: int = Field(
        101, ge=2, description="number of atoms in distributions of rewards and values"
    )
    limits: tuple[float, float] = Field(
        (-7.0, 7.0),
        description="lowest and highest atom in symlog units, in which 7 means a value of 1,096",
    )
    weights: MuZeroWeightsConfig = Field(MuZeroWeightsConfig())
    ends: bool = Field(
        True, description="predict episode ends; false: search as if no episode ended"
    )
    target_tau: float = Field(0.01, gt=0, le=1, description="Polyak rate of the target networks")

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only up to the current step, and from a replay buffer also transitions."""
        transitions = Transitions() if config.train.online.enabled else None
        return DataNeeds(transitions=transitions, observed_steps=config.train.frame_stack)

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Request the K + n steps that follow each sample, with rewards and episode ends."""
        own = FollowingSteps(self.unroll_steps + self.n_step, rewards=True, ends=True)
        return joint_following([super().following(config), own])

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        train = config.train
        found = {
            f"algo.latent_dim is {self.latent_dim}: set it to a multiple of algo.simplex_dim {self.simplex_dim}": (
                self.latent_dim % self.simplex_dim > 0
            ),
            f"train.gradient_accumulation is {train.gradient_accumulation}, but target networks move after every "
            "batch: set it to 1 and enlarge train.batch_size": train.gradient_accumulation > 1,
            "train.precision is 'bf16', too coarse for values: set it to 'fp32'": (
                train.precision == "bf16"
            ),
            "train.online.hindsight.enabled is true, but all steps of a window need one goal: set it to false": (
                train.online.hindsight.enabled
            ),
            "train.online.wrappers contains 'repeated', but steps of a window have equal durations: leave it out": (
                train.online.repeats
            ),
        }
        return [words for words, holds in found.items() if holds]


# ---- formulas ----------------------------------------------------------------------------------------------------


def n_step_values(
    rewards: Tensor, ends: Tensor, mask: Tensor, values: Tensor, n: int, discount: float
) -> Tensor:
    """Return n-step returns of the first L - n + 1 states of windows of L steps.

    Args:
        rewards: (B, L).
        ends: (B, L) 1 at terminal steps.
        mask: (B, L) 1 where the state after a step is known; 0 from the episode's end on.
        values: (B, L + 1) values of the states.
        n: number of rewards that are summed before a value is added; fewer before an episode's end or the end of the
            known states.
        discount: factor per step.

    Returns:
        (B, L - n + 1); 0 for states after an end.
    """
    count = rewards.shape[1] - n + 1
    real = torch.maximum(mask, ends)
    total = values.new_zeros(len(values), count)
    factor, after = torch.ones_like(total), values[:, :count]
    for step in range(n):
        now = slice(step, step + count)
        total = total + factor * rewards[:, now] * real[:, now]
        known = factor * discount * mask[:, now] * (1.0 - ends[:, now])
        # if the stored steps end before the episode does, the value of the last known state replaces the missing steps
        stays = (1.0 - real[:, now]) * factor
        total = total + stays * after
        factor, after = known, values[:, step + 1 : step + 1 + count]
    return (total + factor * after) * (1.0 - after_ends(ends)[:, :count])


def after_ends(ends: Tensor) -> Tensor:
    """Return, for the L + 1 states of windows with terminal steps ``ends`` (B, L), 1 where an episode has ended."""
    return F.pad(ends.cumsum(1).clamp(max=1.0), (1, 0))


def halved(x: Tensor) -> Tensor:
    """Return x unchanged, but let only half of its gradient pass."""
    return 0.5 * (x + x.detach())


# ---- networks ----------------------------------------------------------------------------------------------------


class MuZeroModel(nn.Module):
    """Encoder, dynamics, and the heads of a latent state."""

    def __init__(self, obs: GroupEncoder, ac_dim: int, choices: int, config: MuZeroConfig) -> None:
        super().__init__()
        latent, hidden, simplices = (
            config.latent_dim,
            config.layer_dims,
            SimNorm(config.simplex_dim),
        )
        self.obs = obs
        self.encoder = normed_mlp(obs.output_dim, config.encoder_layer_dims, latent, simplices)
        self.dynamics = normed_mlp(latent + ac_dim, hidden, latent, simplices)
        self.reward = normed_mlp(latent + ac_dim, hidden, config.num_atoms)
        self.value = normed_mlp(latent, hidden, config.num_atoms)
        self.policy = normed_mlp(latent, hidden, choices or 2 * ac_dim)
        self.ends = normed_mlp(latent, hidden, 1) if config.ends else None
        self.projection = normed_mlp(latent, hidden, latent)
        self.prediction = normed_mlp(latent, hidden, latent)
        self.atoms = Atoms(*config.limits, config.num_atoms)
        for head in (self.reward, self.value):
            nn.init.zeros_(cast(Tensor, head[-1].weight))

    def encoded(self, obs: Obs, goal: Obs | None) -> Tensor:
        """Map observations (B, [F,] ...) to latent states (B, D)."""
        return cast(Tensor, self.encoder(self.obs(obs, goal)))

    def gaussian(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation (*B, A) of actions before their tanh."""
        mean, spread = self.policy(z).chunk(2, dim=-1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (spread.tanh() + 1.0)


class ModelTree:
    """Learned model in the form that a search calls; it stores latent states and candidate actions of all nodes.

    Args:
        model: the networks.
        config: section of the algorithm.
        ac_dim: A, action dimensions.
        z: (B, D) latent states of the roots.
        simulations: number of further nodes.
        generator: source of randomness.
    """

    def __init__(
        self,
        model: MuZeroModel,
        config: MuZeroConfig,
        ac_dim: int,
        z: Tensor,
        simulations: int,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.config, self.ac_dim, self.generator = model, config, ac_dim, generator
        self.states = z.new_empty(simulations + 1, *z.shape)
        self.lanes = torch.arange(len(z), device=z.device)
        shape = (simulations + 1, len(z), config.search.candidates, ac_dim)
        self.candidates = None if config.num_choices else z.new_empty(shape)

    def root(self, z: Tensor, mask: Tensor | None = None) -> Leaf:
        """Return values and priors of the roots; ``mask`` (B, C) are the choices that are allowed."""
        nothing = z.new_zeros(len(z))
        return self._leaf(0, z, nothing, nothing + 1.0, mask)

    def actions(self, parents: Tensor, choices: Tensor) -> Tensor:
        """Return the actions (B, A) of choices (B,) at nodes (B,)."""
        if self.candidates is None:
            return F.one_hot(choices, self.ac_dim).to(self.states)
        return self.candidates[parents, self.lanes, choices]

    def __call__(self, number: int, parents: Numbers, choices: Numbers) -> Leaf:
        """Expand an edge of each tree."""
        edges = torch.from_numpy(np.stack([parents, choices])).to(self.lanes.device)
        nodes, chosen = edges.unbind()
        inputs = torch.cat([self.states[nodes, self.lanes], self.actions(nodes, chosen)], -1)
        model, z = self.model, self.model.dynamics(inputs)
        rewards = model.atoms.mean(model.reward(inputs))
        discounts = torch.full_like(rewards, self.config.discount)
        if model.ends is not None:
            discounts = discounts * (model.ends(z).squeeze(-1) <= 0)
        return self._leaf(number, z, rewards, discounts)

    def _leaf(
        self, number: int, z: Tensor, rewards: Tensor, discounts: Tensor, mask: Tensor | None = None
    ) -> Leaf:
        self.states[number] = z
        values = self.model.atoms.mean(self.model.value(z))
        if self.candidates is None:
            priors = masked(self.model.policy(z), mask).softmax(-1)
        else:
            mean, log_std = (x.unsqueeze(1) for x in self.model.gaussian(z))
            own = self.candidates[number]
            drawn = draw_normal(mean.expand_as(own), log_std.exp(), self.generator).tanh()
            uniform = fill_uniform(torch.empty_like(own), self.generator) * 2.0 - 1.0
            own.copy_(drawn)
            own[:, : own.shape[1] // 4] = uniform[:, : own.shape[1] // 4]
            priors = torch.full_like(own[..., 0], 1.0 / own.shape[1])
        every = torch.cat([priors, torch.stack([values, rewards, discounts], 1)], 1)
        found: Floats = every.float().cpu().numpy()  # the only synchronization with a GPU
        return Leaf(found[:, -3], found[:, :-3], found[:, -2], found[:, -1])


# ---- the algorithm -----------------------------------------------------------------------------------------------


@register("muzero", MuZeroConfig)
class MuZero(Algo[MuZeroConfig]):
    """Algorithm that searches a tree in a latent model."""

    main_net = "model"
    targets = {"target": "model"}
    gives_errors = True
    keeps_errors = False
    sample_errors: Tensor | None = None

    def _create_networks(self) -> None:
        choices = self.config.num_choices or 0
        if choices not in (0, self.ac_dim):
            raise ConfigError(
                f"algo.num_choices is {choices}, but actions have {self.ac_dim} numbers: set it to {self.ac_dim}, or "
                "to 0 for continuous actions"
            )
        model = MuZeroModel(self.encoding.encoder(), self.ac_dim, choices, self.config)
        self.nets = nn.ModuleDict({"model": model})
        self.nets["target"] = target_of(model)
        self.random_needs_act = self.frame_stack > 1

    @property
    def model(self) -> MuZeroModel:
        """The networks of the learned model, the policy and the value."""
        return cast(MuZeroModel, self.nets["model"])

    @property
    def rule(self) -> Rule:
        """Constants of the search."""
        return Rule(self.config.search.c_1, self.config.search.c_2)

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the weight of each sample, and the goal; the window is added as ``experience``."""
        return weight_of_window(batch, self.frame_stack, "muzero")

    def _encoded(self, model: MuZeroModel, obs: Obs, goal: Obs | None) -> Tensor:
        """Return latent states (B, T, D) of windows of observations (B, T, [F,] ...)."""
        size, steps = next(iter(obs.values())).shape[:2]
        rows = {key: value.flatten(0, 1) for key, value in obs.items()}
        goals = {k: x.repeat_interleave(steps, 0) for k, x in goal.items()} if goal else None
        return model.encoded(rows, goals).view(size, steps, -1)

    @torch.no_grad()
    def targets_of(
        self, window: dict[str, Any], goal: Obs | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return value targets (B, K + 1), policy targets (B, K + 1, C) and their candidates (B, K + 1, C, A)."""
        config, model = self.config, cast(MuZeroModel, self.nets["target"])
        states = self._encoded(model, window["obs"], goal)
        values = model.atoms.mean(model.value(states))
        mask = window["mask"].to(states)
        returns = n_step_values(
            window["rewards"], window["ends"], mask, values, config.n_step, config.discount
        )
        roots = states[:, : returns.shape[1]].flatten(0, 1)
        obs = {key: x[:, : returns.shape[1]].flatten(0, 1) for key, x in window["obs"].items()}
        tree = ModelTree(model, config, self.ac_dim, roots, config.target_simulations, None)
        root = tree.root(roots, self.action_mask.of(obs))
        found = search(root, tree, config.target_simulations, self.rule)
        policy = torch.from_numpy(regularized_policy(found, root.priors, self.rule)).to(states)
        shape = returns.shape
        candidates = (
            None if tree.candidates is None else tree.candidates[0].view(*shape, -1, self.ac_dim)
        )
        return returns, policy.view(*shape, -1), candidates

    def policy_loss(
        self, z: Tensor, wanted: Tensor, candidates: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return cross-entropies (B,) of the policy at z (B, D) to its targets (B, C), and entropies (B,)."""
        if candidates is None:
            log_probs = self.model.policy(z).log_softmax(-1)
            return -(wanted * log_probs).sum(-1), -(log_probs.exp() * log_probs).sum(-1)
        mean, log_std = self.model.gaussian(z)
        points = candidates.clamp(-LARGEST, LARGEST).atanh()
        distance = (points - mean.unsqueeze(1)) * (-log_std).exp().unsqueeze(1)
        log_probs = -(0.5 * distance.square() + log_std.unsqueeze(1)).sum(-1)
        return -(wanted * log_probs).sum(-1), log_std.sum(-1)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of the model over K steps."""
        config, model, goal = self.config, self.model, batch["goal_obs"]
        steps = config.unroll_steps
        window = window_of(batch["experience"], steps + config.n_step)
        returns, policies, candidates = self.targets_of(window, goal)
        mask, ends = window["mask"].to(returns), window["ends"]
        known = torch.cat([torch.ones_like(mask[:, :1]), mask], 1)
        over = after_ends(ends)[:, : steps + 1]
        runs = 1.0 - over
        valued, chosen = torch.maximum(known[:, : steps + 1], over), known[:, : steps + 1] * runs
        real = torch.maximum(torch.maximum(mask, ends)[:, :steps], over[:, :steps])
        rewards = window["rewards"][:, :steps] * runs[:, :steps]
        obs = {key: value[:, : steps + 1] for key, value in window["obs"].items()}
        encoded = self._encoded(model, obs, goal)
        z = encoded[:, 0]
        parts: dict[str, Tensor] = dict.fromkeys(
            ("value", "policy", "reward", "ends", "consistency", "entropy"), returns.new_zeros(())
        )
        sample = None if batch["weight"] is None else batch["weight"][:, 0]

        def add(name: str, error: Tensor, share: Tensor, step: int) -> None:
            share = share if sample is None else share * sample
            parts[name] = parts[name] + (error * share).mean() / (steps if step else 1)

        values = model.atoms.mean(model.value(z)).detach()
        for step in range(steps + 1):
            logits = model.value(z)
            wanted = model.atoms.two_hot(returns[:, step])
            add("value", categorical_cross_entropy(logits, wanted), valued[:, step], step)
            of_step = None if candidates is None else candidates[:, step]
            error, entropy = self.policy_loss(z, policies[:, step], of_step)
            add("policy", error, chosen[:, step], step)
            add("entropy", -entropy, chosen[:, step], step)
            if step == steps:
                break
            inputs = torch.cat([halved(z) if step else z, window["actions"][:, step]], -1)
            wanted = model.atoms.two_hot(rewards[:, step])
            error = categorical_cross_entropy(model.reward(inputs), wanted)
            add("reward", error, real[:, step], step + 1)
            z = model.dynamics(inputs)
            if model.ends is not None:
                guess = model.ends(z).squeeze(-1)
                error = F.binary_cross_entropy_with_logits(guess, ends[:, step], reduction="none")
                add("ends", error, real[:, step] * runs[:, step], step + 1)
            seen = model.projection(encoded[:, step + 1]).detach()
            near = F.cosine_similarity(model.prediction(model.projection(z)), seen, dim=-1)
            add("consistency", -near, known[:, step + 1], step + 1)
        weights = config.weights
        loss = sum(getattr(weights, name) * part for name, part in parts.items())
        if self.keeps_errors:
            self.sample_errors = (values - returns[:, 0]).abs()
        info = {f"{name.capitalize()}_Loss": part for name, part in parts.items()}
        info |= {"V": values.mean(), "V_Targets": returns.mean(), "Loss": cast(Tensor, loss)}
        return cast(Tensor, loss), info

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update the model and the networks of the targets once; with ``validate`` only compute the loss."""
        if validate:
            return super().train_on_batch(batch, epoch, validate=True)
        more = learn_auxiliaries(self, batch)
        loss, info = self._loss(batch)
        info["Model_Grad_Norms"] = self._gradient_step("model", loss)
        polyak_update_(self.nets["target"], self.model, self.config.target_tau)
        follow_auxiliaries(self, batch)
        return {name: value.detach() for name, value in info.items()} | more

    # ---- test time -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        config, z = self.config.search, self.model.encoded(obs, goal)
        tree = ModelTree(self.model, self.config, self.ac_dim, z, config.simulations, generator)
        root = tree.root(z, self.action_mask.to_act(obs))
        if explore and config.noise_share > 0:
            drawn = draw_dirichlet(torch.from_numpy(root.priors), config.noise_alpha, generator)
            noise = drawn.numpy() * np.sign(root.priors)  # the noise of forbidden choices is 0
            noise /= noise.sum(1, keepdims=True)
            root = root._replace(priors=root.priors + config.noise_share * (noise - root.priors))
        visits = torch.from_numpy(search(root, tree, config.simulations, self.rule).visits).to(z)
        scores = visits.log() / self.config.temperature
        choice = draw_class(scores, generator) if explore else visits.argmax(-1)
        return PolicyStep(tree.actions(torch.zeros_like(choice), choice), state, {})
