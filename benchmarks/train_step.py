"""Benchmark of training steps on one thread: ours, as in ``imitate train``, a bare loop's, and robomimic's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import Contestant, Spent, compare, timed
from benchmarks.peer import Bench
from benchmarks.row import Row
from benchmarks.trained import BATCH_SIZE, data_alone, make_setup, steps_of
from imitate.data import DatasetFile
from imitate.models.precision import has_fast_bf16

STEPS = {"bc": 60, "bc_rnn_gmm": 12}


def run(bench: Bench) -> list[Row]:
    """Measure steps per CPU second, in fp32 and, if the CPU supports it, in bf16."""
    torch.set_num_threads(1)
    precisions = ("fp32", "bf16") if has_fast_bf16(torch.device("cpu")) else ("fp32",)
    return [row for name in STEPS for row in _rows(name, precisions, bench)]


def _rows(name: str, precisions: tuple[str, ...], bench: Bench) -> list[Row]:
    recurrent = name == "bc_rnn_gmm"
    contestants: dict[str, Contestant] = {}
    for precision in precisions:
        setup = make_setup(bench.data, recurrent=recurrent, precision=precision)
        contestants[f"ours {precision}"] = timed(steps_of(setup))
        if not recurrent:
            contestants[f"bare {precision}"] = _bare(bench, precision)
    contestants["data"] = data_alone(make_setup(bench.data, recurrent=recurrent))
    contestants |= bench.peer.contestants(f"step_{name}")
    spent = compare(contestants, STEPS[name])
    peer = bench.peer.per_s(f"step_{name}", spent)
    rows = []
    for precision in precisions:
        rows += _precision_rows(name, precision, spent, peer, bench)
    waiting = 100 * spent["data"].cpu_s / min(spent[f"ours {p}"].cpu_s for p in precisions)
    rows.append(Row(f"{name}: data, part of the fastest step", waiting, "%", 2.0, at_most=True))
    return rows


def _precision_rows(
    name: str, precision: str, spent: dict[str, Spent], peer: float, bench: Bench
) -> list[Row]:
    wanted = {("bc", "fp32"): 1.6, ("bc", "bf16"): 3.5, ("bc_rnn_gmm", "fp32"): 1.15}
    ours = 1 / spent[f"ours {precision}"].cpu_s
    note = f"wall {1 / spent[f'ours {precision}'].wall_s:.0f}/s"
    rows = [
        Row(
            f"{name} {precision}",
            ours,
            "steps/CPU s",
            None,
            False,
            peer,
            bench.peer.source_of(f"step_{name}"),
            note,
        ),
        Row(
            f"{name} {precision}: times robomimic's fp32",
            ours / peer,
            "x",
            wanted.get((name, precision), 1.0),
        ),
    ]
    if f"bare {precision}" in spent:
        share = ours * spent[f"bare {precision}"].cpu_s
        rows.append(Row(f"{name} {precision}: of a bare loop's steps/s", share, "x", 0.9))
    return rows


def _bare(bench: Bench, precision: str) -> Contestant:
    """Return a bare training loop for this network, without checks, logging or normalization."""
    obs, actions = _contiguous(bench)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(obs.shape[1], 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, actions.shape[1]), nn.Tanh(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-4, fused=True)

    def iterate(n: int) -> None:
        order = torch.randint(len(obs), (n, BATCH_SIZE))
        for index in order:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                prediction = net(obs[index])
            loss = nn.functional.mse_loss(prediction.float(), actions[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return timed(iterate)


def _contiguous(bench: Bench) -> tuple[Tensor, Tensor]:
    with DatasetFile(bench.data) as file:
        demos = file.demos()
        obs = [[torch.as_tensor(file.read(d, f"obs/{k}")) for k in OBS_KEYS] for d in demos]
        actions = [torch.as_tensor(file.read(d, "actions")) for d in demos]
    return torch.cat([torch.cat(keys, 1) for keys in obs]).float(), torch.cat(actions).float()
