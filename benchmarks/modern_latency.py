"""One call on one thread of the policies that predict chunks, and of transformers, loaded from a checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Literal

import torch

from benchmarks.bench import Bench
from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import percentiles
from benchmarks.row import Row
from imitate.config import load_config
from imitate.data import DatasetFile
from imitate.models.precision import has_fast_bf16
from imitate.policy.checkpoint import checkpoint_dict
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.setup import build, resolve

ROUNDS = 5
UNET = {"enabled": True, "down_dims": [64, 128, 256]}
CONTEXT = 10
# robomimic's defaults: six layers of 512, 19 million weights.
TRANSFORMER = {"enabled": True, "context_length": CONTEXT}
ROTARY = {**TRANSFORMER, "rotary_embedding": True, "supervise_all_steps": True}
Precision = Literal["fp32", "bf16"]


def run(bench: Bench) -> list[Row]:
    """p50 in CPU milliseconds: of a new chunk; of a transformer's action, in turn with robomimic's."""
    torch.set_num_threads(1)
    rows = [
        _chunk_row("diffusion U-Net [64, 128, 256], 10 DDIM steps", bench, 60.0, "diffusion_policy", {
            "unet": UNET, "ddim": {"enabled": True}, "ddpm": {"enabled": False}}),
        _chunk_row("flow U-Net [64, 128, 256], 2 steps", bench, 12.0, "flow_policy", {
            "unet": UNET, "mlp": {"enabled": False}, "flow": {"num_inference_steps": 2}}),
        _chunk_row("flow MLP, 4 steps", bench, 3.0, "flow_policy", {}),
    ]  # fmt: skip
    return rows + _transformer_rows(bench)


def _chunk_row(
    name: str, bench: Bench, wanted_ms: float, algo_name: str, algo: dict[str, Any]
) -> Row:
    call = _call(bench, algo_name, algo, {}, new_episode=True)
    figures = _rounds(call, 30)
    note = f"wall {_median(figures, 'wall_p50_ms'):.3g}"
    p50 = _median(figures, "cpu_p50_ms")
    return Row(f"{name}: chunk", p50, "CPU ms", wanted_ms, True, note=note)


def _transformer_rows(bench: Bench) -> list[Row]:
    frames = {"frame_stack": CONTEXT}
    cases: dict[str, tuple[Callable[[], object], float | None]] = {
        "transformer": (_call(bench, "bc", {"transformer": TRANSFORMER}, frames), 1.5),
        "transformer, rotary, cache": (_call(bench, "bc", {"transformer": ROTARY}, {"seq_length": 20}), 3.0),
    }  # fmt: skip
    if has_fast_bf16(torch.device("cpu")):
        for name, (algo, train) in {
            "transformer, bf16": (TRANSFORMER, frames),
            "transformer, rotary, cache, bf16": (ROTARY, {"seq_length": 20}),
        }.items():
            cases[name] = (_call(bench, "bc", {"transformer": algo}, train, precision="bf16"), None)
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in (*cases, "peer")}
    for _ in range(ROUNDS):
        for name, (call, _) in cases.items():
            figures[name].append(percentiles(call, 20, warm_up=5))
        if bench.peer.live:
            figures["peer"].append(bench.peer.ask("call_bc_transformer", 20))
    recorded = bench.peer.figure("call_bc_transformer")
    peer = _median(figures["peer"], "cpu_p50_ms") if figures["peer"] else recorded
    rows = []
    for name, (_, wanted) in cases.items():
        p50 = _median(figures[name], "cpu_p50_ms")
        rows.append(Row(f"{name}: call", p50, "CPU ms", None, True, peer, bench.peer.source))
        rows.append(Row(f"{name}: times robomimic's speed", peer / p50, "x", wanted))
    return rows


def _call(
    bench: Bench,
    algo_name: str,
    algo: dict[str, Any],
    train: dict[str, Any],
    *,
    precision: Precision = "fp32",
    new_episode: bool = False,
) -> Callable[[], object]:
    """A call of a policy with fresh weights; with ``new_episode`` one that has nothing planned yet."""
    policy = _policy(bench, algo_name, algo, train, precision)
    with DatasetFile(bench.data) as file:
        demo = file.demos()[0]
        ob = {key: file.read(demo, f"obs/{key}")[0] for key in OBS_KEYS}
    policy.start_episode()

    def call() -> object:
        if new_episode:
            policy.start_episode()
        return policy(ob)

    return call


def _policy(
    bench: Bench, algo_name: str, algo: dict[str, Any], train: dict[str, Any], precision: Precision
) -> RolloutPolicy:
    tree = {
        "algo_name": algo_name,
        "experiment": {"name": "benchmark", "rollout": {"enabled": False}},
        "train": {"obs_normalization": "mean_std", "cuda": False, **train},
        "algo": algo,
        "observation": {"modalities": {"obs": {"low_dim": list(OBS_KEYS)}}},
    }
    setup = build(resolve(load_config(tree), bench.data, None), torch.device("cpu"))
    ckpt = checkpoint_dict(
        setup.algo, env_metadata=setup.env_metas[0], shape_metadata=setup.shape_metadata
    )
    return policy_from_checkpoint("cpu", ckpt_dict=ckpt, precision=precision)[0]


def _rounds(call: Callable[[], object], calls: int) -> list[dict[str, float]]:
    return [percentiles(call, calls, warm_up=5) for _ in range(ROUNDS)]


def _median(figures: list[dict[str, float]], key: str) -> float:
    return statistics.median(figure[key] for figure in figures)
