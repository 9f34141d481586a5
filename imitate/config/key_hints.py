"""Suggestions for an unknown key: the key here for another toolkit's name, or the same key in the right section."""

from collections.abc import Iterable, Mapping
from typing import Any

MOST_KEYS = 3
"""Largest number of keys that a hint names."""
SYNONYMS: dict[str, tuple[str, ...]] = {
    "clip_range": ("algo.clip",),
    "chunk_size": ("chunk.size", "horizon.prediction_horizon"),
    "discount_factor": ("algo.discount",),
    "ent_coef": ("entropy_weight", "temperature.initial"),
    "exploration_fraction": ("algo.epsilon",),
    "gae_lambda": ("algo.trace",),
    "gamma": ("algo.discount",),
    "gradient_steps": ("online.update_ratio",),
    "initial_collect_steps": ("online.warmup_steps",),
    "hidden_sizes": ("layer_dims",),
    "hidden_units": ("layer_dims",),
    "learning_rate": ("learning_rate.initial",),
    "learning_starts": ("online.warmup_steps",),
    "lr": ("learning_rate.initial",),
    "mini_batch_length": ("train.seq_length",),
    "mini_batch_size": ("train.batch_size",),
    "n_action_steps": ("chunk.execute", "horizon.action_horizon"),
    "n_critics": ("ensemble.n",),
    "n_envs": ("online.num_envs",),
    "n_epochs": ("algo.rollout_epochs", "train.num_epochs"),
    "n_obs_steps": ("horizon.observation_horizon", "train.frame_stack"),
    "n_steps_per_epoch": ("experiment.epoch_every_n_steps",),
    "net_arch": ("layer_dims",),
    "num_workers": ("train.num_data_workers", "online.num_workers"),
    "optimizer_lr": ("learning_rate.initial",),
    "policy_delay": ("actor.update_freq",),
    "replay_buffer_length": ("online.buffer_size",),
    "target_theta": ("algo.target_tau",),
    "tau": ("algo.target_tau",),
    "target_update_interval": ("algo.target_update_freq",),
    "total_timesteps": ("train.num_epochs",),
    "train_freq": ("online.collect_steps",),
    "update_per_collect": ("online.update_ratio",),
    "unroll_length": ("online.collect_steps",),
    "vf_coef": ("algo.value_weight",),
    "wandb": ("logging.log_wandb",),
    "weight_decay": ("regularization.L2",),
}
"""Last parts of dotted keys, by the names that robomimic, LeRobot, Stable-Baselines3, d3rlpy, ALF and DI-engine use."""


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Yield the dotted key of each value of a tree."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def keys_that_mean(word: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that a word means: the key itself, else the keys that end with its synonym, else with the word.

    If more than three keys end with the synonym, the three shortest are returned; if more than three end with the word,
    none.
    """
    keys = tuple(keys)
    word = word.replace("/", ".")
    if word in keys:
        return [word]
    last = word.rpartition(".")[2]
    for end in SYNONYMS.get(last, ()):
        found = [key for key in keys if f".{key}".endswith(f".{end}")]
        if found:  # prefer the optimizers of networks to the optimizers of auxiliary losses
            found = [key for key in found if ".optimizer." not in key] or found
            return sorted(found, key=len)[:MOST_KEYS]
    found = [key for key in keys if f".{key}".endswith(f".{last}")]
    return found if len(found) <= MOST_KEYS else []
