"""Program of two ranks: algorithms learn from different data on each; rank 0 writes the findings as JSON.

Argument: a file for the findings.

The reference averages all gradients at once after the backward pass. The sum of two numbers does not depend on their
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

from imitate import algo_factory, load_config
from imitate.train.gradients import GradientAverage
from imitate.train.ranks import joined_ranks

OBS, ACTIONS, BATCH = 5, 2, 8
CASES = {
    "bc": {"algo_name": "bc", "algo": {"actor_layer_dims": [16, 16]}},
    "bc_accumulated": {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16, 16]},
        "train": {"gradient_accumulation": 2, "max_grad_norm": 0.01},
    },
    "bc_bf16": {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16, 16]},
        "train": {"precision": "bf16"},
    },
    "bc_rnn_gmm": {
        "algo_name": "bc",
        "algo": {
            "actor_layer_dims": [16],
            "gmm": {"enabled": True},
            "rnn": {"enabled": True, "horizon": 4, "hidden_dim": 16},
        },
        "train": {"seq_length": 4},
    },
    "act": {
        "algo_name": "act",
        "algo": {
            "chunk": {"size": 4, "execute": 4},
            "transformer": {
                **{"embed_dim": 16, "num_heads": 2, "feedforward_dim": 16},
                **{"encoder_layers": 1, "decoder_layers": 1},
            },
            "vae": {"encoder_layers": 1},
        },
    },
    "diffusion_policy": {
        "algo_name": "diffusion_policy",
        "algo": {"unet": {"down_dims": [16, 32], "n_groups": 4, "diffusion_step_embed_dim": 16}},
    },
    "sac": {
        "algo_name": "sac",
        "algo": {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}},
    },
}


def make(tree):
    tree = {
        **tree,
        "experiment": {"epoch_every_n_steps": 10},
        "train": {"num_epochs": 10, "obs_normalization": None, **tree.get("train", {})},
        "observation": {"modalities": {"obs": {"low_dim": ["s"]}}},
    }
    torch.manual_seed(0)
    return algo_factory(tree["algo_name"], load_config(tree), {"s": (OBS,)}, ACTIONS)


def batches(algo, rank, count=4):
    train = algo.global_config.train
    steps = train.frame_stack - 1 + train.seq_length
    generator = torch.Generator().manual_seed(100 + rank)

    def draw(*shape):
        return torch.rand(*shape, generator=generator) * 2 - 1

    for _ in range(count):
        yield {
            "obs": {"s": draw(BATCH, steps, OBS)},
            "next_obs": {"s": draw(BATCH, steps, OBS)},
            "actions": draw(BATCH, steps, ACTIONS),
            "rewards": draw(BATCH, steps),
            "dones": torch.zeros(BATCH, steps),
            "pad_mask": torch.ones(BATCH, steps, dtype=torch.bool),
            "index": torch.arange(BATCH),
        }


def learn(algo, rank, share):
    algo.optimization.share_gradients = share
    algo.set_train()
    torch.manual_seed(7 + rank)
    for batch in batches(algo, rank):
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
    average = GradientAverage(ranks, bucket_bytes=1)
    found = []
    for _ in range(2):  # the second time with buckets that exist
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


with joined_ranks(uses_cuda=False) as ranks:
    findings = {"unused": unused(ranks)}
    for name, tree in CASES.items():
        ours, theirs = make(tree), make(tree)
        before = copy.deepcopy([w.detach() for w in ours.nets.parameters()])
        average = GradientAverage(ranks, bucket_bytes=500)
        weights = learn(ours, ranks.rank, average)
        alone = learn(make(tree), ranks.rank, None)
        known = average._known
        findings[name] = {
            "buckets": max(len(each._buckets) for each in known.values()),
            "networks": len(known),
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
