"""Collection of environment steps in this process."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.policy_state import PolicyState
from imitate.algo.slots.scripted import scripted_algo
from imitate.envs.env import Env, random_actions
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.steps import Array, Collected, Step


class Collector(Protocol):
    """Source of environment steps, taken with an algorithm's policy.

    Attributes:
        version: number of updates of the current weights, set before each collection.
        progress: fraction of the training that is over, in [0, 1], set before each collection.
    """

    version: int
    progress: float

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """Take about ``num_steps`` steps in each environment, with random actions if ``random``."""

    def begin_stage(self, make: Callable[[], Env], kwargs: Mapping[str, Any]) -> bool:
        """Set the stage of a curriculum in the running environments; return false if they have to be made anew."""

    def updates_allowed(self) -> int | None:
        """Return the number of updates allowed before the next collection, or None if there is no limit."""

    def metrics(self) -> dict[str, float]:
        """Return additional numbers to log with an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""

    def close(self) -> None:
        """Free simulators and end processes."""


class WarmUp:
    """Actions of a program, which are executed before the policy's first update.

    Args:
        name: ``scripted``, or ``module:function``.
        task: name of the environment.
        shapes: shapes of the observations.
        low, high: (A,) limits of the environment.
    """

    def __init__(
        self, name: str, task: str, shapes: Mapping[str, tuple[int, ...]], low: Array, high: Array
    ) -> None:
        self._algo = scripted_algo(name, task, shapes, len(low))
        self._low, self._high = low, high
        self._state: PolicyState | None = None

    def actions(self, obs: Mapping[str, Any], num: int) -> NDArray[np.float32]:
        """Return an action (N, A) for each of N raw observations."""
        algo = self._algo
        if self._state is None:
            self._state = algo.initial_state(num)
        ready = algo.preprocess.prepare_obs(obs, tuple(algo.obs_shapes))
        step = algo.act(ready, self._state)
        self._state = step.state
        actions: NDArray[np.float32] = np.clip(step.action.numpy(), self._low, self._high)
        return actions

    def end(self, ends: NDArray[np.bool_]) -> None:
        """Begin a new episode in the rows in which ``ends`` (N,) is true."""
        if self._state is not None and ends.any():
            self._state = self._algo.reset_state(self._state, torch.from_numpy(ends))


class LocalCollector:
    """Collects a policy's steps in a group of environments; episodes continue from one call to the next.

    Args:
        group: the environments.
        algo: algorithm that acts with ``explore=True`` and its latest weights.
        action_low, action_high: (A,) limits of the environment.
        num_choices: number of discrete choices, one-hot in the first values of an action.
        warmup: gives the actions before the first update, or None for uniform random actions.

    Attributes:
        version: number of updates of the weights, set by the learner.
        progress: fraction of the training that is over.
        on_step: called after each step.
    """

    def __init__(
        self,
        group: EnvGroup,
        algo: Algo,
        action_low: Array,
        action_high: Array,
        *,
        num_choices: int = 0,
        warmup: WarmUp | None = None,
    ) -> None:
        self._warmup = warmup
        self.group, self.algo, self.version, self.progress = group, algo, 0, 0.0
        self.on_step: Callable[[], None] | None = None
        self._low, self._high = action_low.astype(np.float32), action_high.astype(np.float32)
        self._num_choices = num_choices
        self._state: PolicyState | None = None

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """Take ``num_steps`` steps in each environment, with uniform actions if ``random``."""
        group = self.group
        if not group.obs:
            group.reset()
        training = self.algo.nets.training
        self.algo.set_eval()
        self.algo.set_progress(self.progress)
        with torch.inference_mode():
            steps = [self._step(random) for _ in range(num_steps)]
        if training:
            self.algo.set_train()
        episodes, messages = group.finished, tuple(group.messages)
        group.finished, group.messages = [], []
        return Collected(steps, group.lanes, episodes, self.version, messages)

    def begin_stage(self, make: Callable[[], Env], kwargs: Mapping[str, Any]) -> bool:
        """Set the stage in the environments; return false if one has no ``set_stage``."""
        return self.group.begin_stage(make, kwargs)

    def updates_allowed(self) -> int | None:
        """Return None: the weights never become too old, so the number of updates has no limit."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return an empty dictionary: a collector in this process has no numbers to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the episodes; a resumed run begins new episodes."""
        return {"begun": (self.group.begun - (self.group.lengths == 0)).tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`: running episodes are dropped, the next ones begin."""
        self.group.begun[:] = np.maximum(state["begun"], 0)
        self.group.obs, self._state = {}, None

    def close(self) -> None:
        """Free the simulators."""
        self.group.close()

    def _step(self, random: bool) -> Step:
        algo, group = self.algo, self.group
        if random and not algo.random_needs_act:
            step = group.step(self._random())
            if self.on_step is not None:
                self.on_step()
            self._state = None
            if self._warmup is not None:
                self._warmup.end(step.ends)
            return step
        if self._state is None:
            self._state = algo.initial_state(len(group))
        obs = algo.preprocess.prepare_obs(group.obs, tuple(algo.obs_shapes))
        decided = algo.act(obs, self._state, explore=True)
        self._state = decided.state
        actions = self._random() if random else self._sent(decided.action)
        step = group.step(actions)
        if self.on_step is not None:
            self.on_step()
        if step.ends.any():
            ended = torch.from_numpy(step.ends).to(algo.device)
            self._state = algo.reset_state(self._state, ended)
            if random and self._warmup is not None:
                self._warmup.end(step.ends)
        step.extras.update({key: value.cpu().numpy() for key, value in decided.extras.items()})
        return step

    def _sent(self, action: Tensor) -> NDArray[np.float32]:
        """Convert normalized actions to the environment's form."""
        sent = self.algo.preprocess.unnormalize_actions(action).cpu().numpy()
        clipped: NDArray[np.float32] = np.minimum(np.maximum(sent, self._low), self._high)
        return clipped

    def _random(self) -> NDArray[np.float32]:
        """Return actions (N, A) of the warm-up, or uniform ones from torch's generator, which a checkpoint contains."""
        if self._warmup is not None:
            return self._warmup.actions(self.group.obs, len(self.group))
        share = torch.rand(len(self.group), len(self._low)).numpy()
        mask = self.algo.action_mask.of({k: torch.from_numpy(v) for k, v in self.group.obs.items()})
        allowed = None if mask is None else mask.numpy()
        return random_actions(share, self._low, self._high, self._num_choices, allowed)
