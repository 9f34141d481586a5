"""Checks of a policy's actions, before and after it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from imitate.checks.contracts import ContractError
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.online.steps import Array
from imitate.train.setup import Setup

TOLERANCE = 1e-4
STEPS = 2
"""Control steps of each test episode."""


class ActingCheck:
    """Checks of the actions of a policy.

    Args:
        setup: parts of the run, with the algorithm that acts.
        obs: (N, ...) raw states by key in which the policy acts.
        goal: (N, ...) goals, for a policy with goals.
    """

    def __init__(
        self, setup: Setup, obs: Mapping[str, Array], goal: Mapping[str, Array] | None
    ) -> None:
        self._setup, self._algo, self._obs, self._goal = setup, setup.algo, obs, goal
        self._count = len(next(iter(obs.values())))

    def actions(self) -> str:
        """Check the shape of actions, that they are finite, and that the same call gives the same actions.

        Raises:
            ContractError: one of these does not hold.
        """
        shapes = self._setup.shape_metadata
        # without limits, because all actions might look alike after clipping
        policy = RolloutPolicy(self._algo)
        first = self._actions_of(policy)
        wanted = (self._count, len(np.atleast_1d(shapes["action_low"])))
        if first.shape[1:] != wanted:
            raise ContractError(
                f"for {self._count} states have shape {first.shape[1:]}; wanted {wanted}"
            )
        if not np.isfinite(first).all():
            raise ContractError("are NaN or inf")
        if not np.allclose(first, self._actions_of(policy), atol=1e-6):
            raise ContractError(
                "differ in the same state with the same random numbers: acting must not change the algorithm, and must "
                "draw from torch's generator"
            )
        for count in (1, self._count):
            self._check_decision(count, explore=False)
            self._check_decision(count, explore=True)
        drawn = not np.allclose(first, self._actions_of(policy, seed=1), atol=1e-6)
        words = "drawn, in evaluation too" if drawn else "the same in the same state"
        return f"{wanted[1]} numbers, from {first.min():.2g} to {first.max():.2g} here, {words}"

    def checkpoint(self, folder: Path) -> str:
        """Check that a policy loaded from a checkpoint acts like the saved one.

        Raises:
            ContractError: it acts differently.
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
        """Return the actions (STEPS, N, A) of a policy in the test states, with random numbers from this seed."""
        torch.manual_seed(seed)
        policy.start_episode()
        return np.stack([policy(self._obs, self._goal, True) for _ in range(STEPS)])

    def _check_decision(self, count: int, *, explore: bool) -> None:
        """Check the algorithm's own decisions, for one state and for several."""
        algo = self._algo
        prepare = algo.preprocess.prepare_obs
        obs = prepare({key: x[:count] for key, x in self._obs.items()}, tuple(algo.obs_shapes))
        goal = None
        if self._goal is not None:
            seen = {key: x[:count] for key, x in self._goal.items()}
            goal = prepare(seen, tuple(algo.goal_shapes))
        with torch.inference_mode():
            action = algo.act(obs, algo.initial_state(count), goal, explore=explore).action
        where = f"with explore={explore} for {count} states"
        if action.shape != (count, algo.ac_dim):
            raise ContractError(
                f"{where} have shape {tuple(action.shape)}; wanted {(count, algo.ac_dim)}"
            )
        if not bool(action.isfinite().all()):
            raise ContractError(f"{where} are NaN or inf")
        choices = algo.algo_config.get("num_choices", None) or 0
        if choices and not bool((action[:, :choices].sum(-1) == 1).all()):
            raise ContractError(
                f"{where}: the first {choices} numbers are a choice, but not one-hot"
            )
