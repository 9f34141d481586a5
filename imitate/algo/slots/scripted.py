"""A policy that is a program: a task's scripted expert, or a function of the user.

The policy is an algorithm that learns nothing, so that it can be used in place of a checkpoint: in evaluations, or as
the frozen policy of ``residual`` or ``ppo_bc``. It acts on raw vectors, in the environment's units, and adds no
exploration noise.

    algo.task     a task with a scripted expert, such as ``Lift``
    algo.expert   ``module:function``, called with an observation {key: (D,)}; it returns an action (A,)

Without ``task`` and ``expert``, actions are zeros.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from traceback import extract_tb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, PolicyStep
from imitate.algo.base.factory import algo_factory, register
from imitate.algo.base.own_networks import own_object
from imitate.algo.base.policy_state import InnerState
from imitate.config import AlgoSection, load_config
from imitate.config.algorithms import FUNCTION, RANDOM, SCRIPTED
from imitate.errors import ConfigError, UserError

Expert = Callable[[dict[str, NDArray[Any]]], Any]

MOST_EPISODES = 4096
"""Largest number of episodes whose experts are kept; an older episode gets a new expert."""


class ScriptedConfig(AlgoSection):
    """Options of algorithm ``scripted``, a policy that is a program; without any option, actions are zeros."""

    task: str | None = Field(
        None, description="name of the environment whose scripted expert acts, such as Lift"
    )
    expert: str | None = Field(
        None,
        pattern=FUNCTION,
        description="'module:function': a function of the user, from an observation to an action",
    )


@register("scripted", ScriptedConfig)
class Scripted(Algo[ScriptedConfig]):
    """A scripted expert or a user's function as a policy, whose state is the number of the episode's expert."""

    def _create_networks(self) -> None:
        self.nets = nn.ModuleDict({"policy": nn.Identity()})
        self._make = _maker(self.config, self.ac_dim)
        self._experts: OrderedDict[int, Expert] = OrderedDict()
        self._made = 0

    def _loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        raise ConfigError("algo_name: scripted learns nothing: choose another algorithm")

    def _select_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"obs": batch["obs"]}

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        return {"expert": torch.zeros(batch_size, 1, dtype=torch.int64, device=self.device)}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        raw = {key: self.preprocess.unnormalize_obs(key, x).cpu().numpy() for key, x in obs.items()}
        numbers = [self._number(int(number)) for number in state["expert"][:, 0]]
        actions = [
            self._action(number, {key: x[row] for key, x in raw.items()})
            for row, number in enumerate(numbers)
        ]
        action = torch.from_numpy(np.stack(actions)).to(self.device)
        following = torch.tensor(numbers, device=self.device).unsqueeze(-1)
        return PolicyStep(self.preprocess.normalize_actions(action, obs), {"expert": following}, {})

    def _number(self, number: int) -> int:
        """Return the number of an episode's expert; at the start of an episode, create a new expert."""
        if number in self._experts:
            return number
        self._made += 1
        self._experts[self._made] = self._make()
        if len(self._experts) > MOST_EPISODES:
            self._experts.popitem(last=False)
        return self._made

    def _action(self, number: int, obs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        try:
            found = self._experts[number](_Seen(obs))
        except _NotSeenError as error:
            raise ConfigError(
                f"the expert reads the observation {error}, but sees only {', '.join(obs)}: list it under "
                "observation.modalities"
            ) from error
        except UserError:
            raise
        except Exception as error:  # a function of the user may raise any error
            raise ConfigError(
                f"the expert failed{_place(error)}: {type(error).__name__}: {error}"
            ) from error
        with suppress(TypeError, ValueError):
            action = np.asarray(found, dtype=np.float32).reshape(-1)
            if len(action) == self.ac_dim and np.isfinite(action).all():
                return action
        raise ConfigError(f"the expert returned {found!r}: wanted {self.ac_dim} finite numbers")


class _NotSeenError(KeyError):
    """Raised if an expert reads an observation that the policy does not see."""


class _Seen(dict[str, NDArray[Any]]):
    """Observations for an expert; unlike other dicts, raises ``_NotSeenError`` for a missing key."""

    def __missing__(self, key: str) -> NDArray[Any]:
        raise _NotSeenError(key)


def _place(error: Exception) -> str:
    """Return `` at FILE, line N`` of an error in the expert's code; '' for a function without Python code."""
    frames = extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" at {own[-1].filename}, line {own[-1].lineno}" if own else ""


def _maker(config: ScriptedConfig, ac_dim: int) -> Callable[[], Expert]:
    """Return a function that creates a new expert for each episode."""
    if config.task is None and config.expert is None:
        return lambda: lambda obs: np.zeros(ac_dim)
    if config.expert is not None:
        function: Expert = own_object("algo.expert", config.expert)
        if not callable(function) or isinstance(function, type):
            what = "a class" if isinstance(function, type) else f"of {type(function).__name__}"
            raise ConfigError(
                f"algo.expert: '{config.expert}' is {what}: name a function of the observation that returns the action"
            )
        return lambda: function
    # imported here, because environments import simulators
    from imitate.envs.experts import Style, find_expert

    still = np.zeros(3)
    style = Style(speed=0.65, hover_m=0.075, grasp_offset_m=still, detour_m=still[:2])
    kind = find_expert(str(config.task))
    return lambda: kind(style).act


def scripted_algo(
    name: str,
    task: str,
    shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    horizon: int | None = None,
) -> Algo:
    """Build the scripted policy of a name.

    Args:
        name: ``scripted``, ``module:function``, or ``random``.
        task: name of the environment, whose scripted expert acts.
        shapes: shapes of the observations, of which the policy sees the vectors.
        ac_dim: size of an action.
        horizon: longest episode in steps.

    Raises:
        UserError: the task has no expert, or the function cannot be imported or is not trusted.
    """
    sections: dict[str, dict[str, Any]] = {SCRIPTED: {"task": task}, RANDOM: {}}
    vectors = {key: tuple(shape) for key, shape in shapes.items() if len(shape) == 1}
    tree = {
        "algo_name": SCRIPTED,
        "algo": sections.get(name, {"expert": name}),
        "experiment": {"rollout": {"horizon": horizon}},
        "observation": {"modalities": {"obs": {"low_dim": list(vectors)}}},
    }
    return algo_factory(SCRIPTED, load_config(tree), vectors, ac_dim)
