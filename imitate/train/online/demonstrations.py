"""Loading of demonstration files into replay buffers, and writing of replay buffers as demonstration files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imitate.config import Config
from imitate.config.data_needs import FollowingSteps, Returns, Transitions
from imitate.data.batches.build import training_sources
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.store import DataSource
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.action_scale import refuse_rescaled
from imitate.data.file.episode import Episode
from imitate.data.file.fields import check_step_key
from imitate.data.file.writer import DatasetWriter
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.errors import DatasetError
from imitate.system.ranks import ALONE, Ranks
from imitate.train.online.goals import Hindsight
from imitate.train.online.replay import ReplayBuffer, SequenceReplay


def load_demonstrations(
    sources: Sequence[DataSource],
    obs_shapes: Mapping[str, tuple[int, ...]],
    action_dim: int,
    files: DataFiles,
    *,
    action_keys: Sequence[str] = ("actions",),
    images: tuple[str, ...] = (),
    transitions: Transitions,
    returns: Returns | None = None,
    frame_stack: int = 1,
    reward: RewardTransform,
    reward_free: bool = False,
    end_at_success: bool = False,
    hindsight: Hindsight | None = None,
    following: FollowingSteps | None = None,
    sequences: Mapping[str, Any] | None = None,
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> ReplayBuffer:
    """Load all demos of the files into a buffer; with several ranks, rank r takes every world-th demo.

    Args:
        sources: the files and their chosen demos.
        obs_shapes: as for :class:`ReplayBuffer`.
        action_dim: size A of an action.
        files: open files of the sources.
        action_keys: arrays whose concatenation is the action.
        images: as for :class:`ReplayBuffer`.
        transitions: as for :class:`ReplayBuffer`.
        returns: as for :class:`ReplayBuffer`.
        frame_stack: as for :class:`ReplayBuffer`.
        reward: as for :class:`ReplayBuffer`.
        reward_free: true if demos need no rewards; missing ones become 0.
        end_at_success: true to cut demos after their first success, see :func:`up_to_success`.
        hindsight: as for :class:`ReplayBuffer`.
        following: as for :class:`ReplayBuffer`.
        sequences: arguments of :class:`SequenceReplay` for samples of sequences, whose stored states are zero, as at an
            episode's start, or None to sample single steps.
        seed: seed of the sampling.
        ranks: the processes that share the demos.

    Raises:
        DatasetError: a demo lacks an array, or has other shapes than the environment; or there are fewer demos than
            ranks.
    """
    rows, count = 0, 0
    own: list[list[str]] = []
    for source in sources:
        file = files.open(source.path)
        refuse_rescaled(file)
        names = source.chosen(file)
        own.append(names[(ranks.rank - count) % ranks.world :: ranks.world])
        rows += sum(file.length(demo) + 1 for demo in own[-1])
        count += len(names)
    if count < ranks.world:
        raise DatasetError(
            f"{sources[0].path}: {count} demonstrations for {ranks.world} processes, each of which needs one: "
            "start fewer processes"
        )
    kind = ReplayBuffer if sequences is None else SequenceReplay
    memory = kind(
        obs_shapes,
        action_dim,
        rows + 1,
        images=images,
        transitions=transitions,
        returns=returns,
        frame_stack=frame_stack,
        reward=reward,
        hindsight=hindsight,
        following=following,
        seed=seed,
        **(sequences or {}),
    )
    for source, names in zip(sources, own, strict=True):
        file = files.open(source.path)
        for demo in names:
            keys = tuple(memory.obs_shapes)
            signals = transitions.signals
            episode = read_episode(file, demo, keys, action_keys, signals, reward_free=reward_free)
            _check(file, demo, episode, memory, action_dim)
            memory.add_episode(up_to_success(episode) if end_at_success else episode)
    return memory


def demonstrations_of(
    config: Config, memory_like: ReplayBuffer, action_dim: int, ranks: Ranks = ALONE
) -> ReplayBuffer:
    """Load the demonstrations of ``train.data`` into a buffer with the same form of samples as another one."""
    with data_files(config) as files:
        return load_demonstrations(
            training_sources(config, files),
            memory_like.obs_shapes,
            action_dim,
            files,
            action_keys=config.train.action_keys,
            images=memory_like.image_keys,
            transitions=memory_like.transitions,
            returns=memory_like.returns,
            frame_stack=memory_like.frame_stack,
            reward=memory_like.reward,
            reward_free=not config.algo.data_needs(config).environment_rewards,
            end_at_success=config.train.online.end_at_success,
            hindsight=memory_like.hindsight,
            following=memory_like.following,
            sequences=memory_like.form if isinstance(memory_like, SequenceReplay) else None,
            seed=ranks.seed(config.train.seed + 1),
            ranks=ranks,
        )


def read_episode(
    file: DatasetFile,
    demo: str,
    obs_keys: Sequence[str],
    action_keys: Sequence[str],
    signals: Sequence[str] = (),
    *,
    reward_free: bool = False,
) -> Episode:
    """Read one demo with the arrays of named rewards; if the file has no ``terminals``, use its ``dones``."""
    length = file.length(demo)
    ends = "terminals" if file.has(demo, "terminals") else "dones"
    rewarded = not reward_free or file.has(demo, "rewards")
    wanted = ("rewards", ends) if rewarded else (ends,)
    for key in (*(f"obs/{k}" for k in obs_keys), *action_keys, *wanted):
        if not file.has(demo, key):
            raise DatasetError(
                f"{file.path}: demo '{demo}' has no '{key}', which online RL from demonstrations needs"
            )
    has_next = all(file.has(demo, f"next_obs/{key}") for key in obs_keys)
    named = [key for key in signals if key != "rewards"]
    for key in named:
        check_step_key(file, demo, key)
    terminals = file.read(demo, ends).reshape(length)
    return Episode(
        obs={key: file.read(demo, f"obs/{key}") for key in obs_keys},
        actions=np.concatenate(
            [file.read(demo, key).reshape(length, -1) for key in action_keys], axis=1
        ),
        rewards=file.read(demo, "rewards").reshape(length) if rewarded else np.zeros(length),
        terminals=terminals,
        timeouts=np.zeros_like(terminals),
        next_obs={key: file.read(demo, f"next_obs/{key}") for key in obs_keys}
        if has_next
        else None,
        steps={key: file.read(demo, key).reshape(length) for key in named},
    )


def up_to_success(episode: Episode) -> Episode:
    """Cut an episode at its first reward of 1, which becomes a terminal.

    If it has other rewards than 0 and 1, or no success, it is returned unchanged.
    """
    rewards = np.asarray(episode.rewards)
    if not rewards.any() or not np.isin(rewards, (0.0, 1.0)).all():
        return episode
    stop = int(np.argmax(rewards)) + 1
    after = episode.next_obs
    return Episode(
        obs={key: np.asarray(value)[:stop] for key, value in episode.obs.items()},
        actions=np.asarray(episode.actions)[:stop],
        rewards=rewards[:stop],
        terminals=np.arange(stop) == stop - 1,
        timeouts=np.zeros(stop, dtype=np.bool_),
        next_obs=None if after is None else {k: np.asarray(v)[:stop] for k, v in after.items()},
        steps={key: np.asarray(values)[:stop] for key, values in episode.steps.items()},
    )


def write_demonstrations(
    memory: ReplayBuffer, path: str | Path, env_meta: Mapping[str, Any], *, overwrite: bool = False
) -> int:
    """Write all episodes of a replay buffer to a demonstration file; return their number."""
    count = 0
    with DatasetWriter(path, env_meta, overwrite=overwrite, strict=False) as writer:
        for episode in memory.episodes():
            writer.append_episode(episode)
            count += 1
    return count


def _check(
    file: DatasetFile, demo: str, episode: Episode, memory: ReplayBuffer, action_dim: int
) -> None:
    """Refuse a demo whose shapes differ from the environment's."""
    found = {key: np.shape(value)[1:] for key, value in episode.obs.items()}
    for key, shape in memory.obs_shapes.items():
        if found[key] != shape:
            raise DatasetError(
                f"{file.path}: demo '{demo}': 'obs/{key}' has shape {found[key]} per step, "
                f"but the environment gives {shape}: learn in the environment of the "
                "demonstrations"
            )
    size = np.shape(episode.actions)[1]
    if size != action_dim:
        raise DatasetError(
            f"{file.path}: demo '{demo}' has actions of {size} numbers, but the environment "
            f"takes {action_dim}: learn in the environment of the demonstrations (--env)"
        )
