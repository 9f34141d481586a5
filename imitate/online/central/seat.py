"""Environments of one environment worker, and the worker that currently has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from imitate.crew import Lost
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.errors import EnvError
from imitate.online.central.env_worker import EnvPlan, EnvWork, Stalled, Steps, StepsWanted
from imitate.online.central.policies import PolicyWorker
from imitate.online.workers import MAX_REPLACEMENTS


class EnvSeat:
    """The environments of a plan, the current worker, and its current request.

    Attributes:
        request: current request, or None if the worker is idle.
        version: version of the policy worker's weights when it was asked.
        is_stalled: true if it waits for a policy worker.
    """

    def __init__(self, plan: EnvPlan, backend: Backend[Any]) -> None:
        self.plan, self._backend = plan, backend
        self.state: dict[str, Any] | None = None
        self._restores = False
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(EnvWork, self.plan))
        self.request: StepsWanted | None = None
        self.version, self.is_stalled, self._stalls = 0, False, 0
        self._policy: PolicyWorker | None = None

    @property
    def lanes(self) -> list[int]:
        """Lane numbers of its environments."""
        numbers: list[int] = self.plan.lanes.reshape(-1).tolist()
        return numbers

    def send(self, request: StepsWanted, policy: PolicyWorker) -> None:
        """Ask for steps with the actions of a policy worker."""
        if self._restores:
            self._restores, request = False, replace(request, state=self.state)
        self.request, self.version = request, policy.has.version
        self._give(request, policy)

    def resume(self, policy: PolicyWorker) -> None:
        """Continue the environment worker's request with the actions of a policy worker."""
        if self.request is not None:
            self.is_stalled = False
            self._give(replace(self.request, resumes=True), policy)

    def _give(self, request: StepsWanted, policy: PolicyWorker) -> None:
        assert policy.status is not None
        self._policy = policy
        self.member.give(self._backend.pack(replace(request, address=policy.status.address)))

    def receive(self) -> Steps | Lost | None:
        """Return the received steps, or the loss of the worker, or None if it waits for a policy worker.

        Raises:
            UserError: the worker could not be prepared, or its environments fail each time.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost) and answer.died:
            return answer
        if not isinstance(answer, Answer):
            reason = f"environments {self.lanes} failed: {getattr(answer, 'reason', answer)}"
            raise getattr(answer, "error", None) or EnvError(reason)
        if isinstance(answer.value, Stalled):
            self._stall(answer.value)
            return None
        self.request, self._stalls = None, 0
        steps: Steps = answer.value
        self.state = steps.state
        return steps

    def _stall(self, stalled: Stalled) -> None:
        self.is_stalled, self._stalls = True, self._stalls + 1
        if self._policy is not None:
            self._policy.is_suspect = True
        if self._stalls >= MAX_REPLACEMENTS:
            raise EnvError(
                f"environments {self.lanes} get no actions: {stalled.reason}; "
                f"{MAX_REPLACEMENTS} times in a row"
            )

    def start_anew(self) -> None:
        """Start another worker, whose episodes have different seeds than the lost ones."""
        self.member.stop()
        self._start()
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.restore({**self.state, "begun": begun})

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the worker resume from a state at its next request."""
        self.state, self._restores = state, state is not None
