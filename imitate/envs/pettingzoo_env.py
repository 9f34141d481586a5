"""Environments with PettingZoo's parallel API: several agents in one simulator, each a lane.

They are named ``pettingzoo:MODULE`` (for its function ``parallel_env``), such as ``pettingzoo:mpe2.simple_spread_v3``,
or ``pettingzoo:MODULE:FACTORY``; the module must be trusted, as in other environment names. Observations and actions of
an agent are converted as in :mod:`imitate.envs.gymnasium_env`. The additional observation ``agent_id``, one-hot, lets a
shared policy distinguish the agents. All agents must have the same spaces.

Agents that match a key of ``env_kwargs["opponents"]``, a regular expression, are not lanes: the environment controls
them, with the policy of a checkpoint or at random.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from imitate.envs.env import Array, Obs, Outcome, of_all, success_in
from imitate.envs.rendering import load_triton
from imitate.envs.spaces import ActionSpace, ObservationSpace
from imitate.errors import EnvError
from imitate.system.extras import missing
from imitate.system.trust import PARALLEL, PETTINGZOO, module_of_env

ENV_TYPE = 2
AGENT_ID = "agent_id"
OPPONENTS_ROOM = "imitate.evaluate.environments"
"""Module with ``opponent_of``. It belongs to a higher layer of the package, so it is imported by name when needed."""


class Opponent(Protocol):
    """Interface of the policy of an opponent, an agent that does not learn."""

    def start_episode(self) -> None:
        """Reset the memory for a new episode."""

    def __call__(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""


class PettingZooEnv:
    """A parallel environment of PettingZoo; see :class:`imitate.envs.env.Lanes`.

    Args:
        env_name: ``pettingzoo:MODULE[:FACTORY]``.
        env_kwargs: arguments of the factory, and ``opponents`` {regular expression: checkpoint, or "random"}.
        obs_keys: observation keys to return; None returns all.
        render: true if ``render`` will be called.

    Attributes:
        agents: agents that are lanes, in the order of ``possible_agents``.
        num_choices: number of discrete choices in the first values of an action; 0 if actions are continuous.
    """

    def __init__(
        self,
        env_name: str,
        env_kwargs: dict[str, Any] | None = None,
        *,
        obs_keys: Sequence[str] | None = None,
        render: bool = False,
    ) -> None:
        self.name = env_name
        self._kwargs = {k: v for k, v in (env_kwargs or {}).items() if k != "render_mode"}
        self._can_render = render
        self._env = self._make()
        everyone = tuple(self._env.possible_agents)
        self._opponents = self._players(everyone)
        self.agents = tuple(agent for agent in everyone if agent not in self._opponents)
        if not self.agents:
            raise EnvError(
                f"{env_name}: env_kwargs['opponents'] match all agents ({', '.join(everyone)}): leave one to the policy"
            )
        self._refuse_different_spaces()
        self._seen = {
            agent: ObservationSpace(
                env_name,
                self._env.observation_space(agent),
                None if agent in self._opponents else obs_keys,
            )
            for agent in everyone
        }
        if any(seen.has_images for seen in self._seen.values()):
            load_triton()
        self._actions = {
            agent: ActionSpace(env_name, self._env.action_space(agent)) for agent in everyone
        }
        own = self._actions[self.agents[0]]
        self.action_low, self.action_high = own.low, own.high
        self.action_dim, self.num_choices = own.dim, own.num_choices
        self._ids = dict(zip(everyone, np.eye(len(everyone), dtype=np.float32), strict=True))
        self._latest: dict[str, Obs] = {}
        self._infos: dict[str, Mapping[str, Any]] = {}

    def _make(self) -> Any:
        factory = self.name.removeprefix(PETTINGZOO).partition(":")[2]
        kwargs = {k: v for k, v in copy.deepcopy(self._kwargs).items() if k != "opponents"}
        if self._can_render:
            kwargs["render_mode"] = "rgb_array"
            load_triton()
        try:
            import pettingzoo  # noqa: F401 - to name the package if it is missing
        except ImportError as error:
            raise EnvError(f"{self.name}: {missing('pettingzoo', error)}") from error
        try:
            made = getattr(module_of_env(self.name), factory or PARALLEL)(**kwargs)
        except (ImportError, ValueError) as error:
            raise EnvError(
                f"{self.name}: cannot be imported ({error}): install its package, or correct the name"
            ) from error
        except AttributeError as error:
            raise EnvError(
                f"{self.name}: {error}; the name is {PETTINGZOO}MODULE with a function parallel_env, or "
                f"{PETTINGZOO}MODULE:FACTORY"
            ) from error
        except TypeError as error:
            raise EnvError(
                f"{self.name} does not accept its env_kwargs: {error}; correct env_args['env_kwargs']"
            ) from error
        if not hasattr(made, "possible_agents") or hasattr(made, "agent_iter"):
            raise EnvError(
                f"{self.name}: the function returned a {type(made).__name__}; wanted PettingZoo's parallel API "
                "(possible_agents, step "
                "with the actions of all agents): wrap it by pettingzoo.utils.conversions.aec_to_parallel"
            )
        return made

    def _players(self, everyone: Sequence[str]) -> dict[str, Opponent]:
        """Create the policies of the opponents, the agents that match an expression; the first match counts."""
        wanted = self._kwargs.get("opponents") or {}
        if not isinstance(wanted, Mapping):
            raise EnvError(
                f"{self.name}: env_kwargs['opponents'] is {str(wanted)[:200]}; expected a dict of policies"
            )
        players: dict[str, Opponent] = {}
        for expression, policy in wanted.items():
            try:
                matched = [agent for agent in everyone if re.fullmatch(expression, agent)]
            except (re.error, RecursionError, OverflowError) as error:
                raise EnvError(
                    f"{self.name}: env_kwargs['opponents'] has '{expression[:200]}', which is not a regular expression "
                    f"({error})"
                ) from error
            if not matched:
                raise EnvError(
                    f"{self.name}: env_kwargs['opponents'] names '{expression}', which matches none of the agents "
                    f"{', '.join(everyone)}"
                )
            for agent in matched:
                if agent not in players:
                    space = ActionSpace(self.name, self._env.action_space(agent))
                    players[agent] = import_module(OPPONENTS_ROOM).opponent_of(policy, space)
        return players

    def _refuse_different_spaces(self) -> None:
        first = self.agents[0]
        for kind in ("observation_space", "action_space"):
            spaces = {agent: getattr(self._env, kind)(agent) for agent in self.agents}
            for agent, space in spaces.items():
                if space != spaces[first]:
                    raise EnvError(
                        f"{self.name}: {kind} of '{first}' is {spaces[first]}, but of '{agent}' {space}; one policy "
                        "for all agents needs equal spaces: pad them in a wrapper, or name the others in "
                        "env_kwargs['opponents']"
                    )

    # ------------------------------------------------------------------ episodes

    def reset(
        self, *, seed: int | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Start an episode; return the observations of the agents in order."""
        raw, infos = self._env.reset(seed=seed)
        absent = [agent for agent in self.agents if agent not in raw]
        if absent:
            raise EnvError(
                f"{self.name}: reset returned no observation of '{absent[0]}', only of {', '.join(raw)}; all of "
                "possible_agents must begin an episode"
            )
        self._tell(raw, infos or {})
        for opponent in self._opponents.values():
            opponent.start_episode()
        return [self._latest[agent] for agent in self.agents], {}

    def step(self, actions: Array) -> list[Outcome | None]:
        """Apply one action of each agent, (K, A); see :class:`imitate.envs.env.Lanes`."""
        if len(actions) != len(self.agents):
            raise EnvError(
                f"{self.name}: got actions of shape {np.shape(actions)}, wanted one row for each of the "
                f"{len(self.agents)} agents"
            )
        present = tuple(self._env.agents)
        chosen = dict(zip(self.agents, actions, strict=True))
        native = {
            agent: self._actions[agent].native(
                chosen[agent] if agent in chosen else self._opponents[agent](self._latest[agent])
            )
            for agent in present
        }
        raw, rewards, terminated, truncated, infos = self._env.step(native)
        self._tell(raw, infos)
        return [
            (
                self._latest[agent],
                float(rewards[agent]),
                bool(terminated[agent]),
                bool(truncated[agent]),
                {**self._infos[agent], "success": self._succeeded(agent)},
            )
            if agent in present
            else None
            for agent in self.agents
        ]

    def _tell(self, raw: Mapping[str, Any], infos: Mapping[str, Mapping[str, Any]]) -> None:
        for agent, value in raw.items():
            self._infos[agent] = dict(infos.get(agent) or {})
            further = {AGENT_ID: self._ids[agent]}
            self._latest[agent] = self._seen[agent].observe(value, self._infos[agent], further)

    def _succeeded(self, agent: str) -> bool | None:
        return success_in(self._infos.get(agent, {}))

    def is_success(self) -> dict[str, bool | None]:
        """Return each agent's success from its latest ``info``; the task is solved if all agents succeed."""
        each = {agent: self._succeeded(agent) for agent in self.agents}
        return {"task": of_all(each.values()), **each}

    @property
    def gives_mask(self) -> bool:
        """True if an agent's observation or info has contained ``action_mask``; only valid after the first reset."""
        return self._seen[self.agents[0]].gives_mask

    # ------------------------------------------------------------------ the rest

    @property
    def parallel(self) -> Any:
        """Return the environment itself, with PettingZoo's parallel API."""
        return self._env

    def get_state(self) -> dict[str, Any]:
        """Raise EnvError, because the parallel API has no access to the simulator's state."""
        raise self._no_state()

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Raise EnvError, for the same reason as :meth:`get_state`."""
        raise self._no_state()

    def _no_state(self) -> EnvError:
        return EnvError(
            f"{self.name}: its state can be neither read nor set; play back actions instead of states"
        )

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Draw one frame, resized to the requested size by repeating or dropping pixels."""
        if not self._can_render:
            raise EnvError(
                f"{self.name}: the environment was made without a renderer: make it with render=True"
            )
        frame = np.asarray(self._env.render())
        rows = np.arange(height) * frame.shape[0] // height
        columns = np.arange(width) * frame.shape[1] // width
        return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` with which ``make_env`` makes this environment again."""
        return {"env_name": self.name, "type": ENV_TYPE, "env_kwargs": copy.deepcopy(self._kwargs)}

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
