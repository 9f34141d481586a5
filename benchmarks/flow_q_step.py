"""Updates of FQL and QC beside the sum of their passes through networks, each timed alone, and beside ReBRAC.

    python -m benchmarks.flow_q_step

One thread, CPU time, in turns. Networks have three layers of 512, batches 256 samples, the flow 10 steps, chunks of QC
5 actions; observations have 28 numbers and actions 5, as in OGBench's cube-single. A pass is forward, or forward and
backward where the update learns from it; steps of optimizers and targets are not among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring import compare, timed
from imitate import algo_factory, load_config
from imitate.algo.base.algo import Algo

BATCH, STATE, ACTION, CHUNK, STEPS, WIDTHS = 256, 28, 5, 5, 10, [512, 512, 512]
WANTED = {"fql": 1.15, "qc, one step": 1.2}


def made(name: str, **section: Any) -> Algo:
    """Create an algorithm of the measured size."""
    nets = {net: {"layer_dims": WIDTHS, **section.pop(net, {})} for net in ("actor", "critic")}
    tree = {
        "algo_name": name,
        "train": {"batch_size": BATCH, "cuda": False},
        "experiment": {"epoch_every_n_steps": 1},
        "algo": {**nets, **section},
        "observation": {"modalities": {"obs": {"low_dim": ["s"]}}},
    }
    algo = algo_factory(name, load_config(tree), {"s": (STATE,)}, ACTION, "cpu")
    algo.set_train()
    return algo


def make_batch() -> dict[str, Any]:
    """Return a prepared batch with all that the algorithms use."""
    states, following = torch.randn(2, BATCH, STATE)
    batch: dict[str, Any] = {"obs": {"s": states}, "next_obs": {"s": following}}
    batch |= {name: torch.rand(BATCH, ACTION) * 2 - 1 for name in ("actions", "next_actions")}
    batch |= {"chunk": torch.rand(BATCH, CHUNK * ACTION) * 2 - 1, "rewards": torch.rand(BATCH)}
    batch |= {"chunk_mask": torch.ones(BATCH, CHUNK, dtype=torch.bool), "valid": torch.ones(BATCH)}
    return {**batch, "discounts": torch.full((BATCH,), 0.99), "goal_obs": None, "weight": None}


def passes(algo: Algo, batch: dict[str, Any], size: int) -> dict[str, Callable[[], object]]:
    """Return the passes of an update by name; ``size`` is that of an action, or of a chunk."""
    obs, one, flow = batch["obs"], algo.nets["actor"], algo.nets["flow"]
    critic, target = algo.nets["critic"], algo.nets["critic_target"]
    x, time, free = torch.randn(BATCH, size), torch.rand(BATCH, 1), torch.rand(BATCH, size)
    free.requires_grad_()

    def forward(net: Callable[[], object]) -> Callable[[], object]:
        return torch.no_grad()(net)

    def learned(net: Callable[[], Tensor], of: nn.Module | Tensor) -> Callable[[], object]:
        leaves = [of] if isinstance(of, Tensor) else list(of.parameters())
        return lambda: torch.autograd.grad(net().square().mean(), leaves)

    def flowed() -> None:
        for _ in range(STEPS):
            flow(obs["s"], x, time)

    return {
        "policy in the next state": forward(lambda: one(obs["s"], x)),
        "target critics": forward(lambda: target(obs, x)),
        "critics": learned(lambda: critic(obs, x), critic),
        "flow": learned(lambda: flow(obs["s"], x, time), flow),
        "steps of the flow": forward(flowed),
        "policy": learned(lambda: one(obs["s"], x), one),
        "critics of the policy": learned(lambda: critic(obs, free), free),
    }


def repeated(call: Callable[[], object]) -> Callable[[int], None]:
    """Return a function that makes a number of calls."""

    def calls(number: int) -> None:
        for _ in range(number):
            call()

    return calls


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    flow, batch = {"layer_dims": WIDTHS, "num_steps": STEPS}, make_batch()
    algos = {
        "rebrac": made("rebrac"),
        "fql": made("fql", flow=flow),
        "qc, one step": made("qc", flow=flow, n_step=CHUNK, actor={"enabled": True}),
        "qc, best of 32": made("qc", flow=flow, n_step=CHUNK),
    }
    calls: dict[str, Callable[[], object]] = {
        name: lambda algo=algo: algo.train_on_batch(batch, 1) for name, algo in algos.items()
    }
    for name, size in (("fql", ACTION), ("qc, one step", CHUNK * ACTION)):
        found = passes(algos[name], batch, size)
        calls |= {f"{name}: {part}": call for part, call in found.items()}
    contestants = {name: timed(repeated(call)) for name, call in calls.items()}
    spent = {name: cost.cpu_s for name, cost in compare(contestants, 1, args.rounds).items()}
    for name in calls:
        print(f"{name:40s} {1000 * spent[name]:8.1f} ms")
    for name, wanted in WANTED.items():
        total = sum(cost for part, cost in spent.items() if part.startswith(f"{name}: "))
        print(f"{name}: {spent[name] / total:.2f} times its passes, wanted at most {wanted}")


if __name__ == "__main__":
    main()
