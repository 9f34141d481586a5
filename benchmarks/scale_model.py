"""Formulas of how far distribution goes, and a simulation of stale weights beside the one for staleness.

Collectors step environments, one a core, and send chunks of steps to one learner, which owns the replay buffer and
pushes weights. Evaluations are queues of episodes.
"""

from __future__ import annotations

import heapq
import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Inputs:
    """Costs, in seconds of one core and bytes; which are measured and which assumed says :mod:`benchmarks.scale`.

    Attributes:
        env_s: one step of the environment.
        act_s: one call of the policy in a collector, for one observation.
        reset_s: beginning an episode.
        start_s: starting a worker: imports, environment, policy.
        updates_s: updates of the learner per second.
        weights_bytes: weights that collectors act with.
        obs_bytes: one observation.
        action_bytes: one action, with reward and ends.
        batch: samples of an update.
        chunk_steps: steps in one message of a collector.
        link_bytes_s: of the network link of each machine.
        cores_per_node: collectors on a machine.
        call_s: time of a central policy worker for one request, whatever is in it.
        central_item_s: its time for each observation on top.
    """

    env_s: float
    act_s: float
    reset_s: float
    start_s: float
    updates_s: float
    weights_bytes: float
    obs_bytes: float
    action_bytes: float = 40.0
    batch: int = 256
    chunk_steps: int = 200
    link_bytes_s: float = 1.25e9
    cores_per_node: int = 32
    call_s: float = 0.5e-3
    central_item_s: float = 2e-6


def collected(inputs: Inputs, collectors: int) -> float:
    """Return environment steps per second of collectors with policies of their own, where nothing else limits."""
    return collectors / (inputs.env_s + inputs.act_s)


def collected_centrally(
    inputs: Inputs, collectors: int, *, servers: int = 1, envs_per_request: int = 1
) -> float:
    """Return steps per second where policy workers act for all collectors: by cores, requests or the network."""
    per_server = envs_per_request / (inputs.call_s + envs_per_request * inputs.central_item_s)
    network = inputs.link_bytes_s / (inputs.obs_bytes + inputs.action_bytes)
    return min(collectors / inputs.env_s, servers * per_server, servers * network)


def saturating(inputs: Inputs, updates_per_step: float) -> float:
    """Return the number of collectors that keep the learner busy all the time."""
    return inputs.updates_s / updates_per_step / collected(inputs, 1)


def trained(inputs: Inputs, collectors: int, updates_per_step: float) -> float:
    """Return steps per second of a whole training: collectors wait for the learner."""
    return min(collected(inputs, collectors), inputs.updates_s / updates_per_step)


def least_push_interval(inputs: Inputs, collectors: int, *, copy_per_node: bool = True) -> float:
    """Return the seconds between two versions of weights that the learner's link allows."""
    copies = math.ceil(collectors / inputs.cores_per_node) if copy_per_node else collectors
    return copies * inputs.weights_bytes / inputs.link_bytes_s


def age_s(inputs: Inputs, push_s: float) -> float:
    """Return the mean age of the weights of a chunk when it arrives: a chunk, half a push interval, the transfer."""
    transfer_s = inputs.weights_bytes / inputs.link_bytes_s
    return inputs.chunk_steps / collected(inputs, 1) + push_s / 2 + transfer_s


def most_stale(inputs: Inputs, push_s: float) -> float:
    """Return the largest number of updates between the weights of a chunk and the learner's when it arrives."""
    return inputs.updates_s * (inputs.chunk_steps / collected(inputs, 1) + push_s)


def simulated_staleness(
    inputs: Inputs, collectors: int, push_s: float, seconds: float = 20.0
) -> tuple[float, int]:
    """Return mean and largest staleness in updates, from discrete events, of the second half of the time.

    The learner never waits, and each machine gets its copy of the weights one after the other.
    """
    chunk_s = inputs.chunk_steps / collected(inputs, 1)
    transfer_s = inputs.weights_bytes / inputs.link_bytes_s
    nodes = math.ceil(collectors / inputs.cores_per_node)
    arrivals: list[list[tuple[float, int]]] = [[(0.0, 0)] for _ in range(nodes)]
    free = 0.0
    for push in range(1, int(seconds / push_s) + 1):
        began = max(free, push * push_s)
        version = int(push * push_s * inputs.updates_s)
        for node in range(nodes):
            began += transfer_s
            arrivals[node].append((began, version))
        free = began
    chunks = [(chunk_s * (k + 1) / collectors, k, 0) for k in range(collectors)]
    heapq.heapify(chunks)
    stale: list[tuple[float, int]] = []
    while chunks[0][0] <= seconds:
        now, collector, used = heapq.heappop(chunks)
        stale.append((now, int(now * inputs.updates_s) - used))
        there = arrivals[collector // inputs.cores_per_node]
        newest = max(version for at, version in there if at <= now)
        heapq.heappush(chunks, (now + chunk_s, collector, newest))
    late = [updates for now, updates in stale if now > seconds / 2]
    return statistics.fmean(late), max(late)


def evaluated_s(
    inputs: Inputs, workers: int, episodes: int, steps: int, *, pools: int = 1
) -> float:
    """Return seconds of an evaluation.

    Args:
        inputs: costs.
        workers: number.
        episodes: in all.
        steps: of an episode.
        pools: evaluations that start workers of their own, one after the other; 1: workers are kept.
    """
    episode_s = inputs.reset_s + steps * (inputs.env_s + inputs.act_s)
    waves = math.ceil(episodes / pools / workers)
    return pools * (inputs.start_s + waves * episode_s)


def sample_bytes_s(inputs: Inputs) -> float:
    """Return the bytes per second that a learner draws from its replay buffer: observations and next ones."""
    return inputs.updates_s * inputs.batch * (2 * inputs.obs_bytes + inputs.action_bytes)


def remote_updates_s(inputs: Inputs) -> float:
    """Return the updates per second that one link carries if the replay buffer were on another machine."""
    return inputs.link_bytes_s / (inputs.batch * (2 * inputs.obs_bytes + inputs.action_bytes))


def stored_gb(inputs: Inputs, steps: float = 1e6) -> float:
    """Return the size of a replay buffer; each observation is stored once."""
    return steps * (inputs.obs_bytes + inputs.action_bytes) / 1e9
