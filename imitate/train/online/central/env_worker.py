"""An environment worker: a ring of groups of environments, whose actions come from a policy worker. Needs no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.crew import Reports
from imitate.envs.env import Env
from imitate.errors import EnvError, WireError
from imitate.system.processes import MAKE
from imitate.train.online.central.requests import Address, PolicyChannel
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.steps import Array, Collected, Step


@dataclass(frozen=True)
class EnvPlan:
    """Picklable description from which an environment worker makes its environments.

    Attributes:
        make: makes one environment.
        lanes: (n, K) lane numbers of its n environments with K agents each.
        ring: number of groups into which the environments are divided.
        group: further arguments of :class:`EnvGroup`.
        obs_keys: observations that the policy sees.
        low, high: (A,) limits of actions.
        num_choices: number of discrete choices, one-hot in the first values of an action.
        mask_key: observation that marks the allowed choices, or None if all are allowed.
        seed: seed of random actions.
        timeout_s: longest time to wait for actions.
        token: token of the policy workers.
    """

    make: Callable[[], Env]
    lanes: NDArray[np.int64]
    ring: int
    group: dict[str, Any]
    obs_keys: tuple[str, ...]
    low: Array
    high: Array
    num_choices: int
    mask_key: str | None
    seed: int
    timeout_s: float
    token: bytes = field(repr=False)


@dataclass(frozen=True)
class StepsWanted:
    """A request to an environment worker.

    Attributes:
        num_steps: number of steps of each environment.
        random: true to take uniform random actions.
        address: address of the policy worker to ask.
        state: state of the episodes to begin with, or None to continue.
        resumes: true to continue the last request, which ended as :class:`Stalled`.
        unasked: None to ask the policy for each step; otherwise random actions are taken without it, and this is the
            version of the weights to report.
    """

    num_steps: int
    random: bool
    address: Address = ("", 0)
    state: dict[str, Any] | None = None
    resumes: bool = False
    unasked: int | None = None


@dataclass(frozen=True)
class Steps:
    """An environment worker's answer: the steps of each group, and the state to resume from."""

    parts: list[Collected]
    state: dict[str, Any]


@dataclass(frozen=True)
class Stalled:
    """An environment worker's answer if its policy worker is gone: it keeps its steps and waits for another."""

    reason: str


class EnvWork:
    """Work of an environment worker: answers requests with steps.

    Attributes:
        groups: groups of its environments, which step in turn.
        beat: called regularly, to show that this worker does not hang.
    """

    def __init__(self, plan: EnvPlan, reports: Reports) -> None:
        reports(MAKE)
        self._plan, self.beat = plan, partial(reports, "")
        self._channel: PolicyChannel | None = None
        self._wanted: StepsWanted | None = None
        self.groups = [
            Group(plan, lanes.reshape(-1)) for lanes in np.array_split(plan.lanes, plan.ring)
        ]
        reports("")

    def __call__(self, request: StepsWanted) -> Steps | Stalled:
        """Take the requested steps; return them, or :class:`Stalled` if the policy worker is gone."""
        if not request.resumes or self._wanted is None:
            if request.state is not None:
                self._restore(request.state)
            for group in self.groups:
                group.begin()
            self._wanted = request
        try:
            self._run(self._connected(request.address), self._wanted)
        except WireError as error:
            self._disconnect()
            return Stalled(str(error))
        state = {"begun": [number for group in self.groups for number in group.begun()]}
        return Steps([group.collected() for group in self.groups], state)

    def close(self) -> None:
        """Free the simulators."""
        self._disconnect()
        for group in self.groups:
            group.envs.close()

    def _run(self, channel: PolicyChannel, wanted: StepsWanted) -> None:
        """Step the groups in turn: while one steps, the others wait for their actions."""
        going = [group for group in self.groups if len(group.steps) < wanted.num_steps]
        if wanted.unasked is not None:
            for group in going:
                group.step_randomly(wanted.num_steps, wanted.unasked, self.beat)
            return
        for group in going:
            channel.ask(group.request())
            self.beat()
        while going:
            for group in list(going):
                group.step(channel.answer(), wanted.random)
                self.beat()
                if len(group.steps) < wanted.num_steps:
                    channel.ask(group.request())
                else:
                    going.remove(group)

    def _restore(self, state: Mapping[str, Any]) -> None:
        begun = list(state["begun"])
        for group in self.groups:
            count = len(group.envs)
            group.restore(begun[:count])
            del begun[:count]

    def _connected(self, address: Address) -> PolicyChannel:
        if self._channel is None or self._channel.address != address:
            self._disconnect()
            plan = self._plan
            self._channel = PolicyChannel(address, plan.token, self.beat, plan.timeout_s)
        return self._channel

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None


class Group:
    """Environments that are stepped together, and the policy's state for them, which is kept between two requests.

    Each request asks the policy worker for the actions of one step.

    Args:
        plan: description of the worker's environments.
        lanes: (n,) numbers of the lanes; an environment has one lane for each of its agents.

    Attributes:
        steps: steps taken since :meth:`begin`.
    """

    def __init__(self, plan: EnvPlan, lanes: NDArray[np.int64]) -> None:
        self.envs = EnvGroup(plan.make, lanes, **plan.group)
        self._plan = plan
        self._low, self._high = plan.low.astype(np.float32), plan.high.astype(np.float32)
        self.steps: list[Step] = []
        self._versions: list[int] = []
        self._restart()

    def _restart(self) -> None:
        self._state: dict[str, Any] = {}
        self._fresh = np.ones(len(self.envs), dtype=np.bool_)

    def begin(self) -> None:
        """Begin a new collection."""
        self.steps, self._versions = [], []

    def request(self) -> dict[str, Any]:
        """Return the request for the next actions, which ``BatchedPolicy`` of ``policy_worker`` answers."""
        envs = self.envs
        if not envs.obs:
            envs.reset()
        return {
            "obs": {key: envs.obs[key] for key in self._plan.obs_keys},
            "fresh": self._fresh,
            "clock": self._clock(),
            "state": self._state,
        }

    def step(self, answer: Mapping[str, Any], random: bool) -> None:
        """Take one step with the answered or random actions.

        Raises:
            EnvError: the policy failed.
        """
        if "error" in answer:
            raise EnvError(f"the policy worker cannot act: {answer['error']}")
        actions = self.random_actions() if random else self._sent(answer["actions"])
        step = self.envs.step(actions)
        step.extras.update(answer["extras"])
        self._state, self._fresh = answer["state"], step.ends
        self._versions.append(answer["version"])
        self.steps.append(step)

    def step_randomly(self, num_steps: int, version: int, beat: Callable[[], None]) -> None:
        """Take random actions until the collection has ``num_steps`` steps, then reset the policy's state."""
        if not self.envs.obs:
            self.envs.reset()
        while len(self.steps) < num_steps:
            self.steps.append(self.envs.step(self.random_actions()))
            self._versions.append(version)
            beat()
        self._restart()

    def collected(self) -> Collected:
        """Return the steps of the current collection, with the version of the oldest weights used."""
        envs = self.envs
        came = Collected(
            self.steps, envs.lanes, envs.finished, min(self._versions), tuple(envs.messages)
        )
        envs.finished, envs.messages = [], []
        return came

    def begun(self) -> list[int]:
        """Return each lane's number of begun episodes, to resume from; an episode without a step does not count."""
        numbers: list[int] = (self.envs.begun - (self.envs.lengths == 0)).tolist()
        return numbers

    def restore(self, begun: list[int]) -> None:
        """Drop the running episodes; the next ones have these numbers, see :meth:`begun`."""
        self.envs.begun[:] = np.maximum(begun, 0)
        self.envs.obs = {}
        self._restart()

    def _clock(self) -> NDArray[np.int64]:
        envs = self.envs
        return np.stack([envs.lanes, envs.begun, envs.lengths], axis=1)

    def _sent(self, actions: Array) -> NDArray[np.float32]:
        clipped: NDArray[np.float32] = np.minimum(np.maximum(actions, self._low), self._high)
        return clipped

    def random_actions(self) -> NDArray[np.float32]:
        """Draw uniform actions (n, A) that depend only on seed, environment, episode and step."""
        return np.stack([self._drawn(row, key) for row, key in enumerate(self._clock().tolist())])

    def _drawn(self, row: int, entropy: list[int]) -> NDArray[np.float32]:
        plan = self._plan
        rng, choices = np.random.default_rng([plan.seed, *entropy]), plan.num_choices
        low = np.where(np.isfinite(self._low), self._low, -1.0)
        high = np.where(np.isfinite(self._high), self._high, 1.0)
        action: NDArray[np.float32] = (low + rng.random(len(low)) * (high - low)).astype(np.float32)
        if choices:
            mask = np.ones(choices) if plan.mask_key is None else self.envs.obs[plan.mask_key][row]
            action[:choices] = np.eye(choices)[rng.choice(np.flatnonzero(mask > 0.5))]
        return action
