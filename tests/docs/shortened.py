"""Commands of the documentation made short, with stand-ins for what a test does not have."""

import operator
import re
import shlex
from collections.abc import Mapping

from imitate.config import load_config
from imitate.config.loading import names

ROBOSUITE = 1
"""Type of its environments."""
FEW_UPDATES = {
    "experiment.epoch_every_n_steps": 2,
    "experiment.validation_epoch_every_n_steps": 2,
    "experiment.rollout.enabled": "false",
    "experiment.early_stopping.enabled": "false",
    "experiment.logging.log_tb": "false",
    "train.batch_size": 4,
    "train.num_threads": 1,
}
MOST = {
    "train.online.warmup_steps": 8,
    "train.online.collect_steps": 8,
    "train.online.horizon": 8,
    "train.online.buffer_size": 100,
    "train.online.pretrain_updates": 1,
    "train.online.num_envs": 1,
    "train.online.num_workers": 0,
}
"""Beside `FEW_UPDATES`, for online RL: where a configuration has more."""
ONLINE_EPOCH = 16
"""Steps of the environment."""
FEW_EPISODES = {
    "imitate eval": "-n 1 --workers 1 --horizon 5",
    "imitate collect": "--num 2 --workers 1",
    "imitate dagger": "--rounds 1 --episodes 1 --workers 1",
    "imitate run": "--steps 3 --episodes 1",
    "imitate record": "--steps 3 --episodes 1",
    "imitate sweep": "--dry-run",  # tests/cli/test_sweep.py trains
}
SPECIAL = {
    "robosuite/lift/vq_bet": "--epochs 2 --set algo.vq.pretrain_epochs=1",  # it trains in stages
    # The images here are smaller than its crops.
    "robosuite/lift/bc_image": "--output-dir runs_of_images",  # the stand-in's episodes have no images
    "bc/bc_image": "--set observation.encoder.rgb.obs_randomizer_class=null",
}
"""Options by configuration."""
STAND_INS = (
    (r"checkpoints/best\.pth", "checkpoints/last.pth"),  # without evaluations none is the best
    (r"(--env |expert:)(Lift|Stack|PickPlaceCan)\b", r"\1table_world:\2-v0"),
    (r"\b(s3://bucket|https://host)/", "memory://bucket/"),  # fsspec's, in this process
    (r"RECORDING/<hash>", "recording"),
    (r"--agent RUN\b", "--agent runs/one"),
    (r" --on ray\b", ""),  # the tutorial of docs/cluster.md runs on a cluster
    (r"^torchrun .*?-m imitate", "imitate"),  # tests/train has several ranks
    (r"^python -m cProfile .*?-m imitate", "imitate"),
)
"""(pattern, replacement): simulator, cluster and programs that a test does not have or start."""


def shortened(line):
    """The command with stand-ins, and with options that make it short; the last of two values of an option counts."""
    for pattern, replacement in STAND_INS:
        line = re.sub(pattern, replacement, line)
    command, hash_sign, comment = line.partition(" #")
    return f"{command.rstrip()} {_options(command)}".rstrip() + hash_sign + comment


def _options(command):
    verb = " ".join(command.split()[:2])
    options = FEW_EPISODES.get(verb, "")
    if verb in ("imitate train", "imitate dagger"):
        return f"{_few_updates(command)} {options}"
    if "config init" in command:
        return "--no-forecast"
    if "compare" in command and "--report" not in command:
        return "--steps 3 --max-pairs 2"
    if "--fqe" in command:
        return "--updates 5"
    # The file is there already, from the beginning or from another command of the page.
    if verb == "imitate collect" and "--resume" not in command:
        return f"{options} --overwrite"
    return options


def _few_updates(command):
    words = shlex.split(command)
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if "--resume" in words:  # with the other values of the run
        return "--epochs 2"
    values, options = dict(FEW_UPDATES), []
    if "dagger" not in words:
        options.append("--epochs 1")
    config = next((word for word in words if word in names()), None)
    if config is not None:
        loaded = load_config(config, [one for one in sets if "checkpoint" not in one])
        options.append(SPECIAL.get(config, ""))
        if loaded.train.online.enabled:
            values.update(_few_steps(loaded))
            env = loaded.train.online.env
            if isinstance(env, Mapping) and env["type"] == ROBOSUITE and "--env" not in words:
                options.append("--env table_world:Lift-v0")
    elif "train.online.enabled=true" in sets:
        values.update({"experiment.epoch_every_n_steps": ONLINE_EPOCH, **MOST})
    return " ".join([*(f"--set {key}={value}" for key, value in values.items()), *options])


def _few_steps(config):
    values = {"experiment.epoch_every_n_steps": ONLINE_EPOCH}
    if config.train.online.max_staleness is not None:  # of workers
        values.update({"train.online.max_staleness": "null", "train.online.push_every_s": 0})
    for key, most in MOST.items():
        value = operator.attrgetter(key)(config)
        if key.endswith("collect_steps"):
            most = max(most, config.train.seq_length)  # a sequence is within a rollout
        if value is not None and value > most:
            values[key] = most
    return values
