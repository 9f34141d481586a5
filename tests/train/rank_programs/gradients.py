"""Program of two ranks: algorithms learn from different data on each; rank 0 writes the findings as JSON.

Argument: a file for the findings.

The reference averages one gradient after the other. The sum of two numbers does not depend on their
order, so weights have to be equal bit by bit.
"""

import copy
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from imitate.algo import tdmpc2
from imitate.system.ranks import ALONE
from imitate.train.ranks import GradientAverage, joined_ranks
from tests.tiny import tiny_algo, tiny_batch

RECURRENT = ["rnn.enabled=true", "rnn.horizon=4", "rnn.hidden_dim=16", "gmm.enabled=true"]
INVERSE = {"joined": {"type": "inverse", "encoder": "actor"}, "own": {"type": "inverse"}}
"""Auxiliary losses: one through the actor's encoder, and one through an encoder of its own."""
CASES = {
    "bc": [],
    "bc_accumulated": ["train.gradient_accumulation=2", "train.max_grad_norm=0.01"],
    "bc_bf16": ["train.precision=bf16"],
    "bc_rnn_gmm": ["train.seq_length=4", *(f"algo.{words}" for words in RECURRENT)],
    "act": [],
    "diffusion_policy": [],
    "sac": [],
}
"""Overrides by case; its name begins with that of the algorithm."""


def make(name):
    algo_name = "bc" if name.startswith("bc") else name
    words = {"obs": {"s": 5}, "action": 2, "hidden": (16, 16)}
    return tiny_algo(algo_name, "train.obs_normalization=null", *CASES[name], **words)


def learn(algo, rank, share):
    algo.optimization.share_gradients = share
    algo.set_train()
    torch.manual_seed(7 + rank)
    for number in range(4):
        batch = tiny_batch(algo, size=8, seed=100 * rank + number)
        algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    return torch.cat([weight.detach().flatten() for weight in algo.nets.parameters()])


@contextmanager
def reference(weights):
    yield
    for weight in weights:
        if weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


def same_on_all(values):
    first = values.clone()
    dist.broadcast(first, src=0)
    return bool(torch.equal(first, values))


def unused(ranks):
    """Gradients of weights that are used on both ranks, on one, on none; two of three losses are accumulated."""
    used, half, none = (nn.Parameter(torch.zeros(3)) for _ in range(3))
    average = GradientAverage(ranks)
    found = []
    for _ in range(2):
        for weight in (used, half, none):
            weight.grad = None
        (used * 3.0 * (1 + ranks.rank)).sum().backward()
        with average([used, half, none]):
            loss = (used * (1 + ranks.rank)).sum()
            if ranks.rank == 1:
                loss = loss + (half * 8.0).sum()
            loss.backward(inputs=[used, half, none])
        found.append([None if w.grad is None else w.grad.tolist() for w in (used, half, none)])
    return found


def joined(values):
    """Concatenate batches, which are nested dictionaries of tensors."""
    first = values[0]
    if isinstance(first, dict):
        return {key: joined([value[key] for value in values]) for key in first}
    return torch.cat(values) if first is not None else None


def windows(ranks):
    """Compare a latent model on ranks with one on the joined batch; the policy has no noise, and all critics count."""
    sizes = {"latent_dim": 8, "simplex_dim": 4, "policy_plans": 4, "critic": {"n": 2, "dropout": 0}}
    words = {"obs": {"s": 5}, "action": 2, "hidden": (16, 16), "algo": sizes}
    tdmpc2.LOG_STD = (-40.0, -39.0)
    ours, alone = tiny_algo("tdmpc2", **words), tiny_algo("tdmpc2", **words)
    ours.optimization.share_gradients = GradientAverage(ranks)
    ours.optimization.share_weights = ranks.share
    for number in range(4):
        parts = [tiny_batch(ours, size=8, seed=100 * rank + number) for rank in range(ranks.world)]
        for algo, own in ((ours, parts[ranks.rank]), (alone, joined(parts))):
            algo.train_on_batch(algo.process_batch_for_training(own), 1)
    many, one = ours.nets.state_dict(), alone.nets.state_dict()
    return max(float((many[key] - one[key]).abs().max()) for key in many)  # a step is 3e-4


def named_rewards(ranks):
    """Compare ranks that learn from a part each, also auxiliaries, with one process that learns from all."""
    cost = {"source": "info:cost", "weight": 0, "at_most": 0.25}
    words = {
        "obs": {"s": 5},
        "action": 2,
        "hidden": (16, 16),
        "algo": {"rewards": {"task": {"source": "reward"}, "cost": cost}, "auxiliary": INVERSE},
        "train": {"obs_normalization": None, "online": {"enabled": True, "env": "x"}},
    }
    ours, alone = tiny_algo("ddpg", **words), tiny_algo("ddpg", **words)
    ours.optimization.share_gradients = GradientAverage(ranks)

    def learn_from(algo, batches, ranks):
        signals = torch.cat([batch["n_step_signals"] for batch in batches])
        algo.nets["reward_weights"].observe(signals.numpy(), ranks)
        algo.train_on_batch(algo.process_batch_for_training(joined(batches)), 1)

    for number in range(4):
        parts = []
        for rank in range(ranks.world):
            signals = torch.rand(8, 2) + rank
            more = {"n_step_signals": signals, "signal_discounts": torch.full((8, 2), 0.9)}
            parts.append(tiny_batch(ours, size=8, seed=100 * rank + number, **more))
        learn_from(ours, parts[ranks.rank : ranks.rank + 1], ranks)
        learn_from(alone, parts, ALONE)
    many, one = ours.nets.state_dict(), alone.nets.state_dict()
    multipliers = ours.nets["reward_weights"].multipliers
    return {
        "risen": bool((multipliers > 1.0).all()),
        "same": ranks.any(*(not same_on_all(value) for value in many.values())).count(True) == 0,
        "as one process": all(torch.allclose(many[k], one[k], atol=1e-6) for k in many),
    }


with joined_ranks(uses_cuda=False) as ranks:
    torch.manual_seed(0)
    findings = {"unused": unused(ranks), "named rewards": named_rewards(ranks)}
    findings["windows"] = windows(ranks)
    for name in CASES:
        ours, theirs = make(name), make(name)
        before = copy.deepcopy([w.detach() for w in ours.nets.parameters()])
        average = GradientAverage(ranks)
        weights = learn(ours, ranks.rank, average)
        alone = learn(make(name), ranks.rank, None)
        findings[name] = {
            "moved": bool((weights != torch.cat([w.flatten() for w in before])).any()),
            "apart without": ranks.any(not same_on_all(alone)) == (True,),
            "same": ranks.any(not same_on_all(weights)) == (False,),
            "as reference": ranks.any(
                not torch.equal(weights, learn(theirs, ranks.rank, reference))
            )
            == (False,),
        }
    if ranks.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(findings))
