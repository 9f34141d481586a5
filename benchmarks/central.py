"""Central acting: what a ring of environments gains, and where policy workers pay with images.

    python -m benchmarks.central ring
    python -m benchmarks.central ring --sleep-ms 100
    python -m benchmarks.central images
    python -m benchmarks.central requests

``ring``: an environment that sleeps in a step, and a policy that sleeps as long in a prediction, in one worker each. On
a machine with other work, waking up takes milliseconds, which a longer sleep makes small. ``images``: 4 environments
with an image of 84 x 84, SAC with a ResNet-18, 4 collecting processes against 4 environment workers and one policy
worker: CPU time and memory of all processes. ``requests``: round trips of one small observation, and of 16 clients.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.measuring import Contestant, Spent, compare
from benchmarks.row import Row, table
from imitate import algo_factory, load_config
from imitate.algo.algo import Algo
from imitate.crew.backend import Prepare, Reports
from imitate.crew.local import LocalBackend, LocalMember
from imitate.online.central.channel import PolicyChannel
from imitate.online.central.collector import CentralCollector
from imitate.online.central.policy_worker import PolicyPlan, PolicyWork
from imitate.online.central.server import RequestServer
from imitate.online.workers import Blueprint, ProcessCollector

TOKEN = b"benchmark" * 4
SIZE = 84


class Sleepy:
    """An environment that takes its time."""

    name, action_dim = "sleepy", 1
    action_low, action_high = -np.ones(1), np.ones(1)

    def __init__(self, sleep_s: float = 0.0) -> None:
        self._sleep_s = sleep_s

    def reset(self, *, seed: int | None = None) -> Any:
        return {"place": np.zeros(1)}, {}

    def step(self, action: Any) -> Any:
        time.sleep(self._sleep_s)
        return {"place": np.asarray(action)}, 0.0, False, False, {}

    def close(self) -> None:
        pass


class Picture(Sleepy):
    """An environment that shows an image at no cost."""

    def reset(self, *, seed: int | None = None) -> Any:
        self._image = np.random.default_rng(seed).integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
        return {"image": self._image}, {}

    def step(self, action: Any) -> Any:
        return {"image": self._image}, 0.0, False, False, {}


class SleepyPolicies(LocalBackend):
    """Processes of this machine, of which policy workers sleep in each prediction."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self._sleep_s = sleep_s

    def start(self, prepare: Prepare) -> LocalMember:
        if isinstance(prepare, partial) and prepare.func is PolicyWork:
            return super().start(partial(_sleepy_work, self._sleep_s, *prepare.args))
        return super().start(prepare)


class _SleepyPolicy:
    def __init__(self, policy: Any, sleep_s: float) -> None:
        self.load, self._policy, self._sleep_s = policy.load, policy, sleep_s

    def __call__(self, requests: Any) -> Any:
        time.sleep(self._sleep_s)
        return self._policy(requests)


def _sleepy_work(sleep_s: float, plan: PolicyPlan, reports: Reports) -> PolicyWork:
    work: Any = PolicyWork(plan, reports)
    work.policy = _SleepyPolicy(work.policy, sleep_s)
    return work


def algorithm(images: bool) -> Algo:
    """SAC, small, or with a ResNet-18."""
    keys = {"low_dim": [], "rgb": ["image"]} if images else {"low_dim": ["place"]}
    config = load_config(
        {
            "algo_name": "sac",
            "experiment": {"epoch_every_n_steps": 1000},
            "train": {"num_epochs": 1},
            "observation": {"modalities": {"obs": keys}},
        }
    )
    shapes = {"image": (3, SIZE, SIZE)} if images else {"place": (1,)}
    return algo_factory("sac", config, shapes, 1)


def blueprints(make: Callable[[], Any], algo: Algo, workers: int, envs: int) -> list[Blueprint]:
    """So many workers with so many environments each."""
    config = algo.global_config
    rebuilt = (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim)
    lanes = np.arange(workers * envs).reshape(workers, envs)
    group = {"seed": 0, "horizon": 100}
    low, high = Sleepy.action_low, Sleepy.action_high
    return [
        Blueprint(make, rows, group, rebuilt, low, high, 0, number)
        for number, rows in enumerate(lanes)
    ]


def per_step(collector: Any, steps: int) -> Contestant:
    """Seconds of the clock, and of all processes' CPU, per environment step."""

    def run(n: int) -> Spent:
        cpu, start, number = tree_cpu_s(), time.perf_counter(), 0
        for _ in range(n):
            number += collector.collect(steps).num_steps
        wall_s = time.perf_counter() - start
        return Spent((tree_cpu_s() - cpu) * n / number, wall_s * n / number)

    return run


def tree_cpu_s() -> float:
    """CPU time of this process and of those that it has started."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def workers_mb(collector: Any) -> float:
    """Memory of the processes of this one that are there, shared pages divided among those that share them."""
    children = psutil.Process().children(recursive=True)
    return sum(child.memory_full_info().pss for child in children) / 1e6


def ring(sleep_s: float) -> None:
    """Print what a ring gains."""
    algo = algorithm(images=False)

    def central(envs: int, groups: int) -> CentralCollector:
        plans = blueprints(partial(Sleepy, sleep_s), algo, 1, envs)
        return CentralCollector(
            plans,
            algo,
            ring=groups,
            step_timeout_s=60.0,
            place=nullcontext(SleepyPolicies(sleep_s)),
        )

    wanted = {"1, no ring": (1, 1), "2, no ring": (2, 1), "2, ring of 2": (2, 2)}
    wanted |= {"4, no ring": (4, 1), "4, ring of 2": (4, 2), "4, ring of 4": (4, 4)}
    with ExitStack() as stack:
        collectors = {name: central(*how) for name, how in wanted.items()}
        for collector in collectors.values():
            stack.callback(collector.close)
        spent = compare({k: per_step(c, 25) for k, c in collectors.items()}, 1, rounds=5)
    per_s = {name: 1.0 / cost.wall_s for name, cost in spent.items()}
    rows = [Row(f"environments: {name}", value, "env steps/s") for name, value in per_s.items()]
    rows += [
        Row(
            "ring of 2: times one environment",
            per_s["2, ring of 2"] / per_s["1, no ring"],
            "x",
            1.8,
        ),
        Row("ring of 2: times 2 without", per_s["2, ring of 2"] / per_s["2, no ring"], "x"),
        Row("ring of 4: times 4 without", per_s["4, ring of 4"] / per_s["4, no ring"], "x"),
    ]
    print(table(f"a step and a prediction take {1e3 * sleep_s:g} ms each", rows))


def images() -> None:
    """Print what one policy worker costs and saves beside four encoders."""
    algo, spent, memory = algorithm(images=True), dict[str, Spent](), dict[str, float]()
    makers = {
        "4 collectors": lambda plans: ProcessCollector(plans, algo, step_timeout_s=60.0),
        "4 and a policy worker": lambda plans: CentralCollector(plans, algo, step_timeout_s=60.0),
    }
    with ExitStack() as stack:
        contestants = {}
        for name, make in makers.items():
            before = workers_mb(None)
            collector = make(blueprints(Picture, algo, 4, 1))
            stack.callback(collector.close)
            collector.collect(2)
            memory[name] = workers_mb(collector) - before
            contestants[name] = per_step(collector, 8)
        spent = compare(contestants, 1, rounds=3)
    rows = [Row(f"{name}: CPU of a step", 1e3 * spent[name].cpu_s, "ms") for name in makers]
    rows += [Row(f"{name}: clock of a step", 1e3 * spent[name].wall_s, "ms") for name in makers]
    rows += [Row(f"{name}: memory of the workers", memory[name], "MB") for name in makers]
    print(table("images of 84 x 84, ResNet-18", rows))


def _serve(pipe: Any) -> None:
    server = RequestServer("127.0.0.1", TOKEN)
    pipe.send(server.address)
    while True:
        for request in server.requests(256):
            server.answer(request, {"actions": request.content["obs"]["place"]})


def requests() -> None:
    """Print what a request costs without a policy."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    address = ours.recv()
    request = {"obs": {"place": np.zeros((1, 20), dtype=np.float32)}, "fresh": np.zeros(1, bool)}
    channel = PolicyChannel(address, TOKEN, lambda: None, 60.0)
    times = []
    for _ in range(5000):
        start = time.perf_counter()
        channel.ask(request)
        channel.answer()
        times.append(time.perf_counter() - start)
    counts, deadline = [0] * 16, time.perf_counter() + 5.0

    def ask(number: int) -> None:
        client = PolicyChannel(address, TOKEN, lambda: None, 60.0)
        while time.perf_counter() < deadline:
            for _ in range(8):
                client.ask(request)
            for _ in range(8):
                client.answer()
            counts[number] += 8

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.kill()
    rows = [
        Row("round trip, median", 1e6 * statistics.median(times), "us"),
        Row(
            "16 clients in one process, 8 requests each under way", sum(counts) / 5.0, "requests/s"
        ),
    ]
    print(table("requests", rows))


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.central", description=__doc__)
    parser.add_argument("table", choices=("ring", "images", "requests"))
    parser.add_argument("--sleep-ms", type=float, default=20.0, help="with ring: of a step")
    args = parser.parse_args()
    tables = {"ring": partial(ring, args.sleep_ms / 1e3), "images": images, "requests": requests}
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores ({Path(__file__).stem})")
    tables[args.table]()


if __name__ == "__main__":
    main()
