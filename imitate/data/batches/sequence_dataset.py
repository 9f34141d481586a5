"""The torch dataset of windows of demonstrations."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map
from typing_extensions import Self

from imitate.config.data_needs import (
    FollowingSteps,
    HindsightGoals,
    Outcome,
    Returns,
    Subgoals,
    Transitions,
)
from imitate.data.batches.demo_language import DemoLanguage, holds_language
from imitate.data.batches.goals import goal_sampler
from imitate.data.batches.placement import CACHE_MODES
from imitate.data.batches.rewards import ReturnTable, RewardTransform, StepNumbers, demo_outcomes
from imitate.data.batches.statistics import (
    KeyStats,
    StatsOnDemand,
    image_statistics,
    quantiles_of,
    statistics_of,
)
from imitate.data.batches.store import DataSource, Store
from imitate.data.batches.windows import Gatherer, Windows
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.fields import check_step_key
from imitate.data.shards.data_files import DataFiles
from imitate.errors import ConfigError, DatasetError, nearest
from imitate.functional.transfer import to_device
from imitate.system.images import image_type
from imitate.system.instructions import LANGUAGE_KEY, Instructions
from imitate.system.text import counted

MAX_IMAGES = 1000
"""Largest number of evenly spread frames from which statistics of images and scans are computed."""
_CHUNK_VALUES = 2**20


class Batch(dict[str, Any]):
    """Batch that needs no collating, so that a plain DataLoader can return it unchanged."""


def _collated(items: Sequence[Batch], *, collate_fn_map: object = None) -> Batch:
    (batch,) = items
    return batch


# so that a DataLoader without a collate_fn accepts whole batches
default_collate_fn_map[Batch] = _collated


class SequenceDataset(Dataset[dict[str, Any]]):
    """Windows of demonstrations as raw values.

    Sample i belongs to step i of all demos in natural order (steps whose windows would need padding can be left out).
    The window of a sample has the ``frame_stack - 1`` steps before the step, the step itself, and the
    ``seq_length - 1`` steps after it, T in all; outside of the demo, the first or last step is repeated. A batch is
    read at once, so use a DataLoader without a collate_fn.

    A batch contains float32 tensors, with images as uint8 (H, W, C):

    * ``obs``, ``next_obs``: {key: (B, T, ...)}, for images only the first ``image_steps``; ``goal_obs``: {key: (B,
      ...)};
    * ``actions`` (B, T, A): the concatenated action keys; and each action key by its own name;
    * the keys of ``dataset_keys``: ``rewards``, ``dones``, ``terminals``, ``timeouts`` (B, T), others (B, T, ...);
    * with ``transitions``: ``n_step_rewards`` (B,), ``discounts`` (B,), and ``next_obs``: {key: (B, frame_stack, ...)}
      of the state after these rewards; for S named rewards also ``n_step_signals`` and ``signal_discounts`` (B, S); if
      wanted, ``next_actions`` (B, A), ``chunk`` (B, n, A) and ``chunk_mask`` (B, n); see
      :mod:`imitate.data.batches.windows`;
    * with ``subgoals``: ``subgoals``: {key: (B, ...)} of the state ``horizon`` steps ahead, or (B, horizon, ...) of all
      states up to this one; beyond the demo's end, the last state is repeated;
    * with ``goals``: ``next_obs``, and goals drawn from the data, see :mod:`imitate.data.batches.goals`;
    * with ``outcome``: ``outcome`` and ``later_obs``, see :class:`~imitate.config.data_needs.Outcome`;
    * with ``following``: ``following``, see :class:`~imitate.config.data_needs.FollowingSteps`;
    * with ``returns``: ``returns`` (B, T), returns from each step to the demo's end; ``step`` (B, T) int64, the step's
      index in the demo;
    * ``weight`` (B, T), if steps have different weights in the losses;
    * ``pad_mask`` (B, T) bool, false if the step is padding; ``index`` (B,), indices of the samples;
    * ``task_id`` (B,) int64, index in :attr:`tasks`, or -1 for a demo without an instruction; missing if no demo has
      an instruction.

    The observation ``lang_emb``, if it is requested and not in the file, is the embedding of the demo's instruction.

    Low-dimensional keys are views of one tensor (B, T, D).

    If a file has no ``next_obs``, the observation of the next step is used, and for the last step the last observation
    again. This has no effect at a terminal, where TD targets do not bootstrap, and is an approximation at a timeout.

    Args:
        hdf5_path: the file, or several :class:`DataSource` with equal keys, which then form one dataset.
        obs_keys: keys of the observations to load.
        action_keys: arrays of each demo that are concatenated to form the action: 'actions', 'action_dict/abs_pos' ...
        dataset_keys: further step arrays to load.
        action_config: for each action key a mapping with ``normalization``; actions without normalization must be in
            [-1, 1]. None to accept any actions.
        frame_stack: number of observations up to and including a sample's step.
        seq_length: number of steps from a sample's step on.
        pad_frame_stack: true to allow windows that begin before the demo.
        pad_seq_length: true to allow windows that extend beyond the demo's end.
        get_pad_mask: true to add ``pad_mask`` to batches.
        goal_mode: 'last' to add ``goal_obs``, the demo's last next observation (or its last observation if the file has
            no ``next_obs``); None for no goal.
        hdf5_cache_mode: data that are kept in RAM: 'all'; 'low_dim' for all except arrays with two or more dimensions
            per step (images, scans), which are read from the file; None for nothing; 'auto' for as much as fits into
            free memory, vectors first.
        hdf5_use_swmr: true to open the file in HDF5's SWMR mode, so that another process can write to it.
        hdf5_normalize_obs: true to compute statistics of observations, see :meth:`statistics`; batches stay raw.
        filter_by_attribute: mask of the demos to load; None for all demos.
        load_next_obs: true to add ``next_obs`` to batches.
        lang: instruction of all demos; None for each demo's attribute ``language``, or else ``task_id``.
        demo_limit: largest number of demos to load, the first ones; None for all.
        instructions: embeddings of instructions; None for one-hot vectors of the instructions in the data.
        transitions: transitions that an algorithm needs, or None.
        returns: returns that an algorithm needs, or None.
        subgoals: later observations that an algorithm needs, or None.
        following: successive steps that auxiliary losses need, or None.
        goals: hindsight goals that an algorithm needs, or None.
        outcome: outcomes of demos that an algorithm needs, or None.
        image_steps: number of first steps of a window whose images (and other arrays with two or more dimensions) are
            read; None for all. A policy that predicts 100 actions from one image need not read 100 images.
        files: open files of the sources, for which ``hdf5_use_swmr`` has no effect; None to open them here and close
            them at the end.

    Attributes:
        numbers: scaled rewards and step weights, and the tables of transitions and returns.
        instructions: the instructions (:attr:`tasks`) in the order of ``task_id``, and their embeddings.
        serves_language: true if ``lang_emb`` is made from this table.
        obs_shapes: shape of one step of each observation as stored.
        image_types: type of the recorded values of each image: 'uint8', 'integer' or 'float'.
        action_dims: size of each action key.
        control_freq: control rate of the data in Hz, from the first file that records it; None if no file does.
        sample_weights: (len,) relative probability of each sample; None if all are equal.

    Raises:
        DatasetError: the file has a fault; the message names it and the remedy.
    """

    def __init__(
        self,
        hdf5_path: str | Path | Sequence[DataSource],
        obs_keys: Sequence[str],
        action_keys: Sequence[str] = ("actions",),
        dataset_keys: Sequence[str] = ("actions", "rewards", "dones"),
        action_config: Mapping[str, Any] | None = None,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
        get_pad_mask: bool = False,
        goal_mode: str | None = None,
        hdf5_cache_mode: str | None = "auto",
        hdf5_use_swmr: bool = True,
        hdf5_normalize_obs: bool = False,
        filter_by_attribute: str | None = None,
        load_next_obs: bool = False,
        lang: str | None = None,
        demo_limit: int | None = None,
        instructions: Instructions | None = None,
        image_steps: int | None = None,
        transitions: Transitions | None = None,
        returns: Returns | None = None,
        subgoals: Subgoals | None = None,
        following: FollowingSteps | None = None,
        goals: HindsightGoals | None = None,
        outcome: Outcome | None = None,
        files: DataFiles | None = None,
    ) -> None:
        _one_of("hdf5_cache_mode", hdf5_cache_mode, CACHE_MODES)
        _one_of("goal_mode", goal_mode, ("last", None))
        if frame_stack < 1 or seq_length < 1:
            raise ConfigError(
                f"frame_stack is {frame_stack} and seq_length {seq_length}: both must be at least 1"
            )
        if not action_keys:
            raise ConfigError("action_keys is empty: name at least one array, such as 'actions'")
        if isinstance(hdf5_path, str | Path):
            path = Path(hdf5_path).expanduser()
            source = DataSource(path, filter_by_attribute, demo_limit, lang=lang)
            self.sources: tuple[DataSource, ...] = (source,)
        else:
            self.sources = tuple(hdf5_path)
        self.hdf5_path = str(self.sources[0].path)
        self.hdf5_normalize_obs = hdf5_normalize_obs
        self.obs_keys = tuple(dict.fromkeys(obs_keys))
        self.action_keys = tuple(dict.fromkeys(action_keys))
        self._next_of_window = load_next_obs or goals is not None
        later = (transitions, subgoals, following, goals)
        self.load_next_obs = load_next_obs or any(each is not None for each in later)
        self._subgoals, self._following = subgoals, following
        self.get_pad_mask = get_pad_mask
        self.image_steps = image_steps
        if transitions is not None or returns is not None:
            signals = () if transitions is None else transitions.signals
            dataset_keys = (*dataset_keys, "rewards", "terminals", *signals)
        if following is not None:
            dataset_keys = (*dataset_keys, *following.step_keys)
        steps = tuple(
            dict.fromkeys(key for key in dataset_keys if key not in ("actions", *action_keys))
        )
        with nullcontext(files) if files else DataFiles(swmr=hdf5_use_swmr) as files:
            self.serves_language = LANGUAGE_KEY in self.obs_keys and not holds_language(
                self.sources, files
            )
            stored = tuple(
                key for key in self.obs_keys if key != LANGUAGE_KEY or not self.serves_language
            )
            looked = [
                _look_at_first(files.open(source.path), source, stored, (*self.action_keys, *steps))
                for source in self.sources
            ]
            has_next = all(looked)
            next_keys = stored if self.load_next_obs and has_next else ()
            self.store = Store(
                self.sources,
                [
                    *(f"obs/{key}" for key in sorted(stored)),
                    *(f"next_obs/{key}" for key in sorted(next_keys)),
                    *self.action_keys,
                    *steps,
                ],
                files,
                goal_keys=stored if goal_mode == "last" else (),
                cache_mode=hdf5_cache_mode,
                bounded=_unnormalized(self.action_keys, action_config),
            )
            self._language = DemoLanguage(
                self.sources, self.store.demos, instructions, self.serves_language, files
            )
            outcomes = demo_outcomes(outcome, self.sources, self.store, files)
            rates = (files.open(source.path).control_freq for source in self.sources)
            self.control_freq = next((rate for rate in rates if rate is not None), None)
        self._windows = Windows(
            self.store.demo_start,
            self.store.demo_end,
            frame_stack,
            seq_length,
            pad_frame_stack,
            pad_seq_length,
        )
        if len(self._windows) == 0:
            raise DatasetError(
                f"{self.hdf5_path}: no demo has the {counted(self._windows.length, 'step')} of a window: lower "
                "frame_stack and "
                "seq_length, or set pad_frame_stack and pad_seq_length to true"
            )
        fields = self.store.fields
        for key in self.action_keys:
            if len(fields[key].shape) != 1:
                raise DatasetError(
                    f"{self.hdf5_path}: a step of '{key}' has shape {fields[key].shape}: an action key needs one "
                    "vector per step: correct action_keys"
                )
        self.obs_shapes = {key: fields[f"obs/{key}"].shape for key in stored}
        self.image_types = {
            key: image_type(fields[f"obs/{key}"].recorded)
            for key, shape in self.obs_shapes.items()
            if len(shape) == 3
        }
        self.instructions = self._language.instructions
        if self.serves_language:
            self.obs_shapes[LANGUAGE_KEY] = (self.instructions.size,)
        self.action_dims = {key: fields[key].shape[0] for key in self.action_keys}
        self.sample_weights = self._weights()
        self._gatherer = Gatherer(self.store, self.obs_keys, next_keys, self.action_keys, steps)
        self._frame_stack = frame_stack
        self._transitions = transitions
        sampler = goal_sampler(goals, self.store.demo_end, end_is_known=has_next)
        self._drawn = [each for each in (sampler, outcomes) if each is not None]
        self.numbers = StepNumbers(
            self.store,
            transitions,
            returns,
            frame_stack,
            end_is_known=has_next or not self.load_next_obs,
            goals=sampler,
        )

    @property
    def return_statistics(self) -> ReturnTable:
        """Statistics of the returns.

        Raises:
            DatasetError: the dataset was created without ``returns``.
        """
        if self.numbers.returns is None:
            raise DatasetError(
                "the dataset has no returns: make it with returns=config.algo.data_needs(config).returns, or by "
                "build_datasets(config)"
            )
        return self.numbers.returns

    # ---- samples ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return one sample without the axis B, or for a list or array of indices the batch of these samples."""
        if not isinstance(index, int | np.integer):
            if not isinstance(index, Tensor) or index.ndim > 0:
                return self._gather(_numbers(index))
            index = int(index)
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"sample {index} does not exist: the dataset has {count} samples")
        batch = self._gather(np.array([index % count]))
        return {
            key: {name: part[0] for name, part in value.items()}
            if isinstance(value, dict)
            else value[0]
            for key, value in batch.items()
        }

    def __getitems__(self, index: Any) -> list[Batch]:
        """Return the samples ``index`` as one batch; called by a DataLoader."""
        return [self._gather(_numbers(index))]

    def _gather(self, index: NDArray[np.int64]) -> Batch:
        window, read = self._windows.rows(index), self._gatherer
        rows, last = window.rows, window.last
        now = rows[:, self._frame_stack - 1]
        packed = read.packed(rows)
        batch = Batch()
        batch["obs"] = read.observations(rows, packed, self.image_steps)
        if self._transitions is not None and self.numbers.picker is not None:
            batch.update(read.transitions(now, window, self.numbers.picker, self._transitions))
        elif self._next_of_window:
            batch["next_obs"] = read.after(rows, last, packed, self.image_steps)
        if self._subgoals is not None:
            batch["subgoals"] = read.ahead(now, last, self._subgoals)
        if self._following is not None:
            batch["following"] = read.steps_from(now, last, self._following)
            if self._following.rewards:
                rewards = batch["following"]["rewards"]
                batch["following"]["rewards"] = self.numbers.reward(rewards)
        batch.update(read.steps(rows, packed))
        self.numbers.add_to(batch, rows)
        batch["actions"] = read.actions(packed)
        self._language.add_to(batch, window.demo, rows.shape[1])
        if self._transitions is not None and self.serves_language:
            vectors = batch["next_obs"][LANGUAGE_KEY]
            batch["next_obs"][LANGUAGE_KEY] = vectors[:, : self._frame_stack]
        if self.store.goals:
            batch["goal_obs"] = {key: self.store.goal(key, window.demo) for key in self.store.goals}
        if self.get_pad_mask:
            batch["pad_mask"] = to_device(torch.from_numpy(window.real), packed.all.device)
        batch["index"] = torch.from_numpy(index)
        for each in self._drawn:
            each.add_to(batch, now, window, read)
        return batch

    def windows(self, index: NDArray[np.int64], obs_keys: Collection[str]) -> Batch:
        """Return samples with only ``obs`` {key: (B, T, ...)} of ``obs_keys``, ``actions`` (B, T, A), ``pad_mask``."""
        window = self._windows.rows(index)
        count, steps = window.rows.shape

        def field(key: str) -> Tensor:
            values = self.store.field(key, window.rows.reshape(-1))
            return values.view(count, steps, *values.shape[1:])

        batch = Batch(obs={})
        self._language.add_to(batch, window.demo, steps)
        held = {key: field(f"obs/{key}") for key in obs_keys if f"obs/{key}" in self.store.fields}
        batch["obs"].update(held)
        batch["actions"] = torch.cat([field(key) for key in self.action_keys], -1)
        batch["pad_mask"] = torch.from_numpy(window.real)
        return batch

    # ---- about the data --------------------------------------------------------------------------

    @property
    def window_steps(self) -> int:
        """Number of steps T in a window."""
        return self._windows.length

    @property
    def demos(self) -> list[str]:
        """Names of the demos, preceded by the file's name if there are several files."""
        several = len(self.sources) > 1
        return [
            f"{self.sources[demo.source].path.name}/{demo.name}" if several else demo.name
            for demo in self.store.demos
        ]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Language instructions, in the order of ``task_id``."""
        return self.instructions.names

    @property
    def storage_words(self) -> list[str]:
        """Lines for the log: where images are stored, if there are any, and which demos are very short."""
        return [line for line in (self.store.placement.words, *self.store.notes) if line]

    @property
    def demo_lengths(self) -> NDArray[np.int64]:
        """Number of steps of each demo: (number of demos,)."""
        return self.store.demo_end - self.store.demo_start

    def demo_names(self) -> dict[int, list[str]]:
        """Return the names of the demos by index of their entry in ``train.data``."""
        names: dict[int, list[str]] = {}
        for demo in self.store.demos:
            names.setdefault(self.sources[demo.source].entry, []).append(demo.name)
        return names

    @property
    def reward(self) -> RewardTransform:
        """Scaling of the rewards."""
        return self.numbers.reward

    def demo_of(self, index: int) -> tuple[str, int]:
        """Return the demo and step of a sample."""
        demo, row = self._windows.steps(np.array([index]))
        return self.demos[int(demo[0])], int(row[0] - self.store.demo_start[demo[0]])

    def statistics(self, max_images: int = MAX_IMAGES) -> dict[str, Mapping[str, KeyStats]]:
        """Return ``{"obs": {key: KeyStats}, "actions": {action key: KeyStats}}`` over all steps of the demos.

        Statistics of a key are computed on first use. For vectors they are exact, in float64. For images they are per
        channel, with uint8 scaled to [0, 1]. For images and scans, at most ``max_images`` evenly spread frames are
        used. All steps have equal weights; sampling weights of files are ignored.
        """
        return {
            "obs": StatsOnDemand(
                self.obs_keys, lambda key: self._statistics(f"obs/{key}", max_images)
            ),
            "actions": StatsOnDemand(
                self.action_keys, lambda key: self._statistics(key, max_images)
            ),
        }

    def _statistics(self, key: str, max_images: int) -> KeyStats:
        if self.serves_language and key == f"obs/{LANGUAGE_KEY}":
            return self._language.statistics()
        field = self.store.fields[key]
        count = len(self.store)
        rows = np.arange(count)
        if field.columns is None and count > max_images:
            rows = np.linspace(0, count - 1, max_images).astype(np.int64)
        size = max(1, _CHUNK_VALUES // max(1, int(np.prod(field.shape))))

        def chunks() -> Any:
            for start in range(0, len(rows), size):
                yield self.store.field(key, rows[start : start + size]).cpu().numpy()

        stats = image_statistics(chunks()) if len(field.shape) >= 3 else statistics_of(chunks())
        if field.columns is None:
            return stats
        return replace(
            stats, find_quantiles=lambda: quantiles_of(self.store.field(key, rows).cpu().numpy())
        )

    def first_values(self, key: str) -> NDArray[Any] | None:
        """Return the first value (N, D) of a vector in each demo; None for images and instructions."""
        field = self.store.fields.get(f"obs/{key}")
        if field is None or field.columns is None:
            return None
        found: NDArray[Any] = self.store.field(field.key, self.store.demo_start).cpu().numpy()
        return found.reshape(len(found), -1)

    def source_of_samples(self) -> NDArray[np.int64]:
        """Index of the file of each sample, (len,)."""
        demo, _ = self._windows.steps(np.arange(len(self)))
        return np.array([demo.source for demo in self.store.demos])[demo]

    def _weights(self) -> NDArray[np.float64] | None:
        weights = np.array([source.weight for source in self.sources])
        return None if np.all(weights == weights[0]) else weights[self.source_of_samples()]

    def pin_batches(self) -> None:
        """Gather images of batches into pinned memory; useful if this process copies batches to a CUDA device."""
        self.store.pin_batches()

    def to(self, device: torch.device | str) -> Self:
        """Move the data to a device, in place; batches are then gathered on this device."""
        self.store.to(device)
        self._language.to(device)
        self.numbers.to(device)
        return self


def _numbers(index: Any) -> NDArray[np.int64]:
    if isinstance(index, Tensor):
        index = index.cpu().numpy()
    return np.asarray(index, dtype=np.int64)


def _one_of(name: str, value: str | None, valid: Sequence[str | None]) -> None:
    if value not in valid:
        raise ConfigError(f"{name} cannot be {value!r}; {nearest(str(value), map(str, valid))}")


def _unnormalized(keys: Sequence[str], action_config: Mapping[str, Any] | None) -> list[str]:
    if action_config is None:
        return []
    return [key for key in keys if (action_config.get(key) or {}).get("normalization") is None]


def _look_at_first(
    file: DatasetFile, source: DataSource, obs_keys: Sequence[str], step_keys: Sequence[str]
) -> bool:
    """Refuse keys that are missing in the first demo; return true if the demo has ``next_obs``."""
    demos = file.demos(source.filter_key)
    if not demos:
        return False
    file.length(demos[0])
    for key in step_keys:
        check_step_key(file, demos[0], key)
    for key in obs_keys:
        file.array(demos[0], f"obs/{key}")
    return bool(file.obs_keys(demos[0], "next_obs"))
