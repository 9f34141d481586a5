"""Program of two ranks: an online training; prints findings on both ranks as JSON.

Arguments: a JSON file of the arguments of ``train``, and a file for the findings.
"""

import json
import sys
from pathlib import Path

import torch

from imitate.train import trainer

ARGUMENTS, OUT = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])


def finish(run, status):
    """Compare the ranks while they can still talk to each other."""
    ranks, source = run.ranks, run._source
    group = getattr(source.collector, "group", None)  # workers have their own environments
    learner = source.learner
    nets = run.algo.nets
    weights = torch.cat([weight.double().flatten() for weight in nets.state_dict().values()])
    seen = run.algo.preprocess.normalize_obs(
        "flat", torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    )
    normalizer = learner.obs_normalizer
    memory = learner.memory
    own = {
        "weights": [float(weights.sum()), float(weights.square().sum())],
        "observations": seen.flatten().tolist(),
        "seen": None if normalizer is None else normalizer.count,
        "stored": None if memory is None else len(memory),
        "environments": None if memory is None else memory.num_envs,
        "demonstrations": None
        if learner.demos is None
        else [len(episode.rewards) for episode in learner.demos.episodes()],
        "updates": learner.updates,
        "step": run.state.step,
        "lanes": None if group is None else group.lanes.tolist(),
        "multipliers": nets["reward_weights"].multipliers.tolist()
        if "reward_weights" in nets
        else None,
        "draw": float(torch.rand(())),
    }
    both = ranks.gather(own)
    if ranks.rank == 0:
        OUT.write_text(json.dumps(both))
    return original(run, status)


if __name__ == "__main__":  # the workers import this file
    original, trainer._finish = trainer._finish, finish
    trainer.train(**ARGUMENTS, quiet=True)
