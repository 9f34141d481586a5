"""Policy worker: acts for the environments of all environment workers, with the newest weights."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.policy_state import PolicyState, joined_states
from imitate.algo.base.rows import arrays_of, select_rows
from imitate.config import load_config
from imitate.crew import Reports
from imitate.functional.sampling import RowGenerator, split_mix
from imitate.system.processes import MAKE
from imitate.train.online.central.requests import Address, PendingRequest, RequestServer
from imitate.train.online.seats import Published, load_acting_weights

MAX_REQUESTS = 256
"""Largest number of requests in a batch; further ones wait for the next batch."""


@dataclass(frozen=True)
class PolicyPlan:
    """Picklable description from which a policy worker builds its policy.

    Attributes:
        algo: the algorithm's name, configuration (JSON), shapes of observations and action dimensions.
        device: device on which it acts, such as "cuda:1"; a machine without it uses its first GPU or the CPU.
        seed: seed of the exploration noise.
        token: token that environment workers must know.
        host: address of the training's machine. The worker listens on loopback on that machine, and elsewhere at the
            address from which it reaches that machine.
    """

    algo: tuple[str, str, dict[str, tuple[int, ...]], int]
    device: str
    seed: int
    token: bytes = field(repr=False)
    host: str


@dataclass(frozen=True)
class Weights:
    """New weights for a policy worker.

    Attributes:
        progress: fraction of the training that is over.
        published: the weights and their version.
    """

    progress: float
    published: Published


@dataclass(frozen=True)
class Status:
    """A policy worker's answer to weights, or to None, which checks that it responds.

    Attributes:
        address: address at which it accepts requests.
        batches: number of predictions so far.
        rows: number of observations in them.
    """

    address: Address
    batches: int
    rows: int


class PolicyWork:
    """Work of a policy worker: receives weights, while a thread answers requests.

    Weights, and requests for a sign of life, are answered only between two batches, so a missing answer reveals a
    hanging policy.

    Attributes:
        policy: policy that answers requests.
    """

    def __init__(self, plan: PolicyPlan, reports: Reports) -> None:
        reports(MAKE)
        self.policy = BatchedPolicy(plan)
        self.server = RequestServer(address_towards(plan.host), plan.token)
        self._errands = deque[tuple[Future[None], Callable[[], None]]]()
        self._batches = self._rows = 0
        self._is_over = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        reports("")

    def __call__(self, item: Weights | None) -> Status:
        """Load weights between two batches, or nothing if ``item`` is None, and return the address and counts."""
        done = Future[None]()
        self._errands.append((done, partial(self.policy.load, item)))
        self.server.wake()
        done.result()
        return Status(self.server.address, self._batches, self._rows)

    def close(self) -> None:
        """End the connections, after the batch that is being computed."""
        if not self._is_over:
            self._is_over = True
            self.server.wake()
            self.thread.join()
            self.server.close()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while not self._is_over:
            while self._errands:
                done, errand = self._errands.popleft()
                try:
                    errand()
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)
            requests = self.server.requests(MAX_REQUESTS)
            if requests:
                self._answer(requests)

    def _answer(self, requests: Sequence[PendingRequest]) -> None:
        try:
            answers = self.policy([request.content for request in requests])
        except Exception as error:  # the workers' environments would wait forever
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            answers = [{"error": words}] * len(requests)
        self._batches += 1
        for request, answer in zip(requests, answers, strict=True):
            self._rows += len(answer.get("actions", ()))
            self.server.answer(request, answer)


class BatchedPolicy:
    """A policy that acts for several groups of environments at once and keeps no state of them.

    A request has ``obs``, raw (n, ...) by key; ``fresh`` (n,), true where an episode begins; ``clock`` (n, 3), number
    of the environment, of its episode, and of the step in it, which determine the exploration noise; and ``state`` of
    the last answer, if the policy has one. An answer has ``actions`` (n, A) in the environment's units, not yet
    clipped; ``extras``; ``state``; and ``version`` of the weights.

    Args:
        plan: plan of the policy.

    Attributes:
        version: version of its weights; -1 before the first.
    """

    def __init__(self, plan: PolicyPlan) -> None:
        name, config, shapes, ac_dim = plan.algo
        device = device_here(plan.device)
        self.algo: Algo = algo_factory(
            name, load_config(config), shapes, ac_dim, device, load_pretrained=False
        )
        self.algo.ema = None
        self.algo.set_eval()
        self._seed, self.version = plan.seed, -1

    def load(self, item: Weights | None) -> None:
        """Load other weights to act with from now on."""
        if item is not None:
            load_acting_weights(self.algo, item.published.shared.get())
            self.algo.set_progress(item.progress)
            self.version = item.published.version

    @torch.inference_mode()
    def __call__(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the answers to requests, computed by one prediction."""
        algo = self.algo
        obs = {
            key: np.concatenate([request["obs"][key] for request in requests])
            for key in algo.obs_shapes
        }
        state = joined_states([self._state(request) for request in requests])
        clock = torch.from_numpy(np.concatenate([request["clock"] for request in requests]))
        step = algo.act(
            algo.preprocess.prepare_obs(obs, tuple(algo.obs_shapes)),
            state,
            explore=True,
            generator=RowGenerator(noise_seeds(self._seed, clock), algo.device),
        )
        tree = {
            "actions": algo.preprocess.unnormalize_actions(step.action),
            "extras": step.extras,
            "state": dict(step.state),
        }
        ends = np.cumsum([len(request["fresh"]) for request in requests]).tolist()
        arrays = arrays_of(tree)
        return [
            {**select_rows(arrays, slice(start, end)), "version": self.version}
            for start, end in zip([0, *ends], ends, strict=False)
        ]

    def _state(self, request: Mapping[str, Any]) -> PolicyState:
        """Return the policy state of a request's environments, reset where an episode begins."""
        fresh = torch.from_numpy(np.array(request["fresh"])).to(self.algo.device)
        if not request.get("state"):
            return self.algo.initial_state(len(fresh))
        return self.algo.reset_state(_tensors(request["state"], self.algo.device), fresh)


def address_towards(host: str) -> str:
    """Return this machine's address on the route to another one; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))
        return str(sock.getsockname()[0])


def noise_seeds(seed: int, clock: Tensor) -> Tensor:
    """Return int64 seeds (n,) of the exploration noise for ``clock`` (n, 3): environment, episode, step."""
    seeds = torch.full((len(clock),), seed, dtype=torch.int64)
    for number in clock.unbind(1):
        seeds = split_mix(seeds) + number
    return seeds


def device_here(wanted: str) -> str:
    """Return the wanted device, or if this machine lacks it, the first GPU or else the CPU."""
    kind, _, number = wanted.partition(":")
    if kind != "cuda" or not torch.cuda.is_available():
        return "cpu"
    return wanted if int(number or 0) < torch.cuda.device_count() else kind


def _tensors(tree: Mapping[str, Any], device: torch.device) -> Any:
    return {
        key: _tensors(value, device)
        if isinstance(value, Mapping)
        else torch.tensor(value, device=device)
        for key, value in tree.items()
    }
