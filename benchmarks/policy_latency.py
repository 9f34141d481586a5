"""Latency of one call of RolloutPolicy on one thread, from a raw observation to an action."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import percentiles
from benchmarks.peer import Bench
from benchmarks.row import Row
from benchmarks.trained import make_setup
from imitate.data import DatasetFile
from imitate.functional.kernels import has_int8, pack_linears
from imitate.models.precision import has_fast_bf16
from imitate.policy.rollout_policy import RolloutPolicy

CALLS = {"bc": 1000, "bc_rnn_gmm": 300}
WANTED_MS = {"bc": 0.15, "bc_rnn_gmm": 1.5}
ROUNDS = 5


def run(bench: Bench) -> list[Row]:
    """Measure p50 and p99 in CPU milliseconds, the median of rounds in turn with robomimic's."""
    torch.set_num_threads(1)
    rows = [row for name in CALLS for row in _rows(name, bench)]
    return [*rows, *_precisions(bench)]


def _rows(name: str, bench: Bench) -> list[Row]:
    setup = make_setup(bench.data, recurrent=name == "bc_rnn_gmm")
    policy = RolloutPolicy(
        setup.algo, setup.shape_metadata["action_low"], setup.shape_metadata["action_high"]
    )
    ob = _observation(bench)
    policy.start_episode()
    network = _network(policy, ob)
    ours, alone, peers = [], [], []
    for _ in range(ROUNDS):
        ours.append(percentiles(lambda: policy(ob), CALLS[name]))
        alone.append(percentiles(network, CALLS[name]))
        if bench.peer.live:
            peers.append(bench.peer.measure(f"call_{name}", CALLS[name]))

    def median(figures: list[dict[str, float]], key: str) -> float:
        return statistics.median(figure[key] for figure in figures)

    p50, source = median(ours, "cpu_p50_ms"), bench.peer.source_of(f"call_{name}")
    peer = median(peers, "cpu_p50_ms") if peers else bench.peer.figure(f"call_{name}")
    slow = (median(peers, "cpu_p99_ms"), source) if peers else (None, "")
    wall = f"wall p50 {median(ours, 'wall_p50_ms'):.3g}, p99 {median(ours, 'wall_p99_ms'):.3g}"
    bare = median(alone, "cpu_p50_ms")
    times = f"a call takes {p50 / bare:.3g} times as long"
    return [
        Row(f"{name} p50", p50, "CPU ms", WANTED_MS[name], True, peer, source, wall),
        Row(f"{name} p99", median(ours, "cpu_p99_ms"), "CPU ms", None, True, *slow),
        Row(f"{name} p50, its network alone", bare, "CPU ms", note=times),
    ]


def _observation(bench: Bench) -> dict[str, Any]:
    with DatasetFile(bench.data) as file:
        demo = file.demos()[0]
        return {key: file.read(demo, f"obs/{key}")[0] for key in OBS_KEYS}


def _network(policy: RolloutPolicy, ob: dict[str, Any]) -> Callable[[], Tensor]:
    """Return the policy's network, from a prepared observation to the normalized action."""
    algo = policy.algo
    net: Any = algo.active_nets["policy"]
    arrays = {key: value[None] for key, value in ob.items()}
    obs, memory = algo.preprocess.prepare_obs(arrays), net.initial_memory(1)

    @torch.inference_mode()
    def decide() -> Tensor:
        inputs, _ = net.observe(obs, None, memory)
        action: Tensor = net.decide(inputs)
        return action

    return decide


def _precisions(bench: Bench) -> list[Row]:
    """Measure BC 2x1024 in each precision, in turns."""
    policies: dict[str, RolloutPolicy] = {}
    dtypes = {"fp32": torch.float32}
    if has_fast_bf16(torch.device("cpu")):
        dtypes["bf16"] = torch.bfloat16
    if has_int8():
        dtypes["int8"] = torch.int8
    for name, dtype in dtypes.items():
        setup = make_setup(bench.data, recurrent=False)
        setup.algo.set_eval()
        pack_linears(setup.algo.active_nets, dtype)
        policies[name] = RolloutPolicy(setup.algo)
    ob = _observation(bench)
    found: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(ROUNDS):
        for name, policy in policies.items():
            figures = percentiles(partial(policy, ob), CALLS["bc"])
            found[name].append(figures["cpu_p50_ms"])
    return [
        Row(f"bc p50, {name}", statistics.median(each), "CPU ms", WANTED_MS["bc"], True)
        for name, each in found.items()
    ]
