"""Checks of an algorithm: its actions, before saving and after loading, and the effect of updates on its networks."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from imitate.algo.base.algo import Algo, Info
from imitate.checks.contracts import ContractError
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.online.steps import Array
from imitate.train.setup import Setup

TOLERANCE = 1e-4
STEPS = 2
"""Number of control steps of each test episode."""


class ActingCheck:
    """Checks that a policy acts correctly, and still does after it was saved and loaded.

    Args:
        setup: the parts of a run, with the algorithm that acts.
        obs: raw observations (N, ...) of each key in the N states in which the policy acts.
        goal: raw observations (N, ...) of each goal key; None for a policy without goals.
    """

    def __init__(
        self, setup: Setup, obs: Mapping[str, Array], goal: Mapping[str, Array] | None
    ) -> None:
        self._setup, self._algo, self._obs, self._goal = setup, setup.algo, obs, goal
        self._count = len(next(iter(obs.values())))

    def actions(self) -> str:
        """Check that actions have the right shape, are finite, and are repeatable with the same random seed.

        Raises:
            ContractError: actions fail one of these checks.
        """
        shapes = self._setup.shape_metadata
        # The policy gets no action limits, because clipping could make different actions equal.
        policy = RolloutPolicy(self._algo)
        first = self._actions_of(policy)
        wanted = (self._count, len(np.atleast_1d(shapes["action_low"])))
        if first.shape[1:] != wanted:
            raise ContractError(
                f"actions for {self._count} states have shape {first.shape[1:]}; expected {wanted}"
            )
        if not np.isfinite(first).all():
            raise ContractError("actions are NaN or inf")
        if not np.allclose(first, self._actions_of(policy), atol=1e-6):
            raise ContractError(
                "actions differ in the same state with the same random seed: acting must not change the algorithm, and "
                "must draw random numbers from torch's generator"
            )
        for count in (1, self._count):
            self._check_decision(count, explore=False)
            self._check_decision(count, explore=True)
        drawn = not np.allclose(first, self._actions_of(policy, seed=1), atol=1e-6)
        words = "random, in evaluation too" if drawn else "the same in the same state"
        return f"{wanted[1]} numbers, from {first.min():.2g} to {first.max():.2g} here, {words}"

    def checkpoint(self, folder: Path) -> str:
        """Check that a policy loaded from a checkpoint acts like the saved policy.

        Args:
            folder: folder for the checkpoint, which is written as ``policy.pth``.

        Returns:
            words for the report, with the size of the file.

        Raises:
            ContractError: the loaded policy acts differently.
        """
        setup, path = self._setup, folder / "policy.pth"
        ckpt = checkpoint_dict(
            self._algo,
            env_metadata=setup.env_metas[0],
            environments=setup.env_metas,
            language=setup.language,
            shape_metadata=setup.shape_metadata,
        )
        save_checkpoint(ckpt, path)
        loaded, _ = policy_from_checkpoint(device=setup.device, ckpt_path=path)
        shapes = setup.shape_metadata
        policy = RolloutPolicy(self._algo, shapes["action_low"], shapes["action_high"])
        own, other = self._actions_of(policy), self._actions_of(loaded)
        gap = float(np.abs(own - other).max())
        if not gap <= TOLERANCE * max(1.0, float(np.abs(own).max())):
            raise ContractError(
                f"the loaded policy acts differently, by up to {gap:.3g}: serialize() must return "
                "everything that acting needs"
            )
        return f"{path.stat().st_size / 1e6:.1f} MB, acts the same when loaded"

    def _actions_of(self, policy: RolloutPolicy, seed: int = 0) -> Array:
        """Return the actions (STEPS, N, A) of a policy in the test states, with the given random seed."""
        torch.manual_seed(seed)
        policy.start_episode()
        return np.stack([policy(self._obs, self._goal, True) for _ in range(STEPS)])

    def _check_decision(self, count: int, *, explore: bool) -> None:
        """Check shape and values of the actions that the algorithm itself returns for the first ``count`` states."""
        algo = self._algo
        prepare = algo.preprocess.prepare_obs
        obs = prepare({key: x[:count] for key, x in self._obs.items()}, tuple(algo.obs_shapes))
        goal = None
        if self._goal is not None:
            seen = {key: x[:count] for key, x in self._goal.items()}
            goal = prepare(seen, tuple(algo.goal_shapes))
        with torch.inference_mode():
            action = algo.act(obs, algo.initial_state(count), goal, explore=explore).action
        where = f"actions with explore={explore} for {count} states"
        if action.shape != (count, algo.ac_dim):
            raise ContractError(
                f"{where} have shape {tuple(action.shape)}; expected {(count, algo.ac_dim)}"
            )
        if not bool(action.isfinite().all()):
            raise ContractError(f"{where} are NaN or inf")
        choices = algo.algo_config.get("num_choices", None) or 0
        if choices and not bool((action[:, :choices].sum(-1) == 1).all()):
            raise ContractError(
                f"{where}: the first {choices} numbers stand for a choice, but are not a one-hot vector"
            )


NAMED = 4
"""Largest number of names that a message lists."""


class NetworkRecord:
    """Record of how updates change an algorithm's networks: losses, gradients, weights and target networks.

    Args:
        algo: the algorithm whose updates are recorded.
    """

    def __init__(self, algo: Algo) -> None:
        self._algo = algo
        self._trainable = {
            name: weight for name, weight in algo.nets.named_parameters() if weight.requires_grad
        }
        self._largest: dict[str, Tensor] = {}
        self._first = {name: weight.detach().clone() for name, weight in self._trainable.items()}
        self._targets = {
            (part, target): learner.targets[target]
            for part, learner in enumerate(algo.learners)
            for target in learner.targets
        }
        self._moves: dict[tuple[int, str], int] = dict.fromkeys(self._targets, 0)
        self._odd: list[str] = []
        self._handles = [
            weight.register_hook(partial(self._saw, name))  # type: ignore[no-untyped-call]
            for name, weight in self._trainable.items()
        ]
        self.updates = 0
        self.losses: list[float] = []

    def close(self) -> None:
        """Remove the hooks that record gradients."""
        for handle in self._handles:
            handle.remove()

    def update(self, update: Callable[[], Info | None]) -> bool:
        """Make and record one update.

        Args:
            update: function that makes the update and returns its logged values, or None if no update is left.

        Returns:
            whether an update was made.

        Raises:
            ContractError: a logged value is NaN or infinite, or there is no 'Loss'.
        """
        before = {key: self._vectors(*key) for key in self._targets}
        info = update()
        if info is None:
            return False
        self.updates += 1
        self._check_info(info)
        for key, (old, online) in before.items():
            new, online_after = self._vectors(*key)
            if torch.equal(new, old):
                continue
            self._moves[key] += 1
            if not (follows(old, new, online_after) or follows(old, new, online)):
                self._odd.append(key[1])
        return True

    def loss(self) -> str:
        """Return words for the first and the last loss, which need not fall in so few updates."""
        return (
            f"finite: {self.losses[0]:.4g} in the first of {self.updates} updates, {self.losses[-1]:.4g} in the last; "
            "each draws its own batch"
        )

    def missing(self) -> list[str]:
        """Return the names of the trainable weights that have received no gradient."""
        return [name for name in self._trainable if name not in self._largest]

    def gradients(self) -> str:
        """Check that each trainable weight gets a finite gradient.

        Raises:
            ContractError: a gradient is missing or not finite.
        """
        bad = [name for name, value in self._largest.items() if not math.isfinite(float(value))]
        if bad:
            raise ContractError(f"gradients of {shortened(bad)} are NaN or inf")
        missing = self.missing()
        if missing:
            raise ContractError(
                f"{shortened(missing)} got no gradient: use these weights in a loss, or remove them"
            )
        zero = [name for name, value in self._largest.items() if float(value) == 0.0]
        words = f"of all {len(self._trainable)} trainable tensors"
        return words + (f"; always 0: {shortened(zero)}" if zero else "")

    def weights(self) -> str:
        """Check that weights with a gradient change, and stay finite.

        Raises:
            ContractError: a weight does not change or is not finite.
        """
        moved = [name for name, value in self._largest.items() if float(value) > 0.0]
        still = [name for name in moved if torch.equal(self._first[name], self._trainable[name])]
        if still:
            raise ContractError(
                f"{shortened(still)} have gradients but do not change: check that algo.optim_params has an optimizer "
                "for these weights, with a learning rate above 0"
            )
        bad = [name for name in moved if not bool(self._trainable[name].isfinite().all())]
        if bad:
            raise ContractError(f"{shortened(bad)} are NaN or inf after {self.updates} updates")
        return f"{len(moved)} tensors change"

    def targets(self) -> str:
        """Check that each target network changes, and only towards its online network.

        Raises:
            ContractError: a target network changes in another way, or not at all.
        """
        if not self._targets:
            return "no target networks"
        if self._odd:
            raise ContractError(
                f"{shortened(sorted(set(self._odd)))} changes, but not towards its online network: a target network "
                "must get no gradients and no other changes"
            )
        every = int(self._algo.algo_config.get("target_update_freq", 1))
        names = ", ".join(sorted({target for _, target in self._targets}))
        still = sorted({key[1] for key, moves in self._moves.items() if not moves})
        if still and every <= self.updates:
            raise ContractError(
                f"{shortened(still)} never changes in {self.updates} updates: update it after its online network"
            )
        if still:
            return f"{names}: changes every {every} updates, but the check made only {self.updates}"
        return f"{names}: follows its online network"

    def _saw(self, name: str, gradient: Tensor) -> None:
        largest = gradient.detach().abs().max()
        known = self._largest.get(name)
        self._largest[name] = largest if known is None else torch.maximum(known, largest)

    def _vectors(self, part: int, target: str) -> tuple[Tensor, Tensor]:
        nets = self._algo.learners[part].nets
        return _vector(nets[target]), _vector(nets.get_submodule(self._targets[part, target]))

    def _check_info(self, info: Mapping[str, Tensor]) -> None:
        if "Loss" not in info:
            raise ContractError(f"train_on_batch returned {', '.join(info)}, but no 'Loss'")
        numbers = {name: float(value) for name, value in info.items()}
        bad = [name for name, value in numbers.items() if not math.isfinite(value)]
        if bad:
            raise ContractError(f"{', '.join(bad)} is {numbers[bad[0]]} in update {self.updates}")
        self.losses.append(numbers["Loss"])


def follows(old: Tensor, new: Tensor, online: Tensor) -> bool:
    """Return true if a target network moved on a straight line from its weights ``old`` (P,) towards ``online`` (P,).

    It may move all the way, but not beyond.

    Args:
        old: weights of the target network before the update.
        new: weights of the target network after the update.
        online: weights of the online network.
    """
    moved, way = new - old, online - old
    length = way.square().sum()
    if length == 0:
        return False
    part = float((moved * way).sum() / length)
    # If float32 cannot resolve the difference, the target must not have moved elsewhere.
    rounding = 1e-6 * old.norm()
    aside = (moved - part * way).norm() - rounding
    return -1e-6 <= part <= 1.0 + 1e-3 and bool(aside <= 0.05 * moved.norm())


def shortened(names: list[str]) -> str:
    """Join the first four names by commas, with the number of those left out."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _vector(net: torch.nn.Module) -> Tensor:
    """Return all weights of a network as one vector (P,) of float64."""
    weights = [weight.detach().double().flatten() for weight in net.parameters()]
    return torch.cat(weights).clone()
