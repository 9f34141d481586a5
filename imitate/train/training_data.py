"""Description of the training data in one line and in numbers for ``results.json``, and warnings about the demos."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.config import Config
from imitate.config.train import ALL_DEMOS, DatasetConfig
from imitate.data.batches.build import TRAIN_MASK, VALID_MASK
from imitate.data.batches.store import DataSource
from imitate.data.dataset_file import DatasetFile
from imitate.data.shards.data_files import DataFiles
from imitate.data.shards.folder import ShardFolder, shards_at
from imitate.system.text import counted

SHOWN_FILES = 3
SHOWN_DEMOS = 4
LABELLED = "labelled"


@dataclass(frozen=True)
class FileShare:
    """The part of a demonstration file used for training.

    Attributes:
        path: path of the file.
        filter_key: mask of the chosen demos, or None for all.
        demos: number of chosen demos.
        of: total number of demos in the file.
        steps: number of steps of the chosen demos.
        longest: number of steps of the longest chosen demo.
        shards: number of files with chosen demos in a folder of shards, or None for a single file.
        failures: chosen demos whose attribute ``success`` is false.
        held_out: chosen demos that are also in the file's validation mask.
    """

    path: str
    filter_key: str | None
    demos: int
    of: int
    steps: int
    longest: int
    failures: tuple[str, ...]
    held_out: tuple[str, ...]
    shards: int | None = None

    @property
    def words(self) -> str:
        """Describe the part: own.hdf5: 25 of 30 demos (filter key 'train'), 368 steps, 2 failures among them."""
        key = "no filter key" if self.filter_key is None else f"filter key '{self.filter_key}'"
        files = "" if self.shards is None else f" ({counted(self.shards, 'shard')})"
        demos = f"{self.demos} of {counted(self.of, 'demo')} ({key})"
        text = f"{Path(self.path).name}{files}: {demos}, {counted(self.steps, 'step')}"
        for names, what in ((self.failures, "failure"), (self.held_out, "held-out demo")):
            if names:
                text += f", {counted(len(names), what)} among them"
        return text


@dataclass(frozen=True)
class TrainingData:
    """Files, observations and network of a training.

    Attributes:
        files: parts of demonstration files.
        observations: shape of one step by observation key.
        weights: number of weights of the network.
        constant: by normalized key, the dimensions that do not vary and are therefore shifted to 0, not scaled.
    """

    files: tuple[FileShare, ...]
    observations: dict[str, list[int]]
    weights: int
    constant: dict[str, list[int]]

    @classmethod
    def of(
        cls, files: tuple[FileShare, ...], shapes: Mapping[str, Sequence[int]], algo: Algo
    ) -> TrainingData:
        """Describe a training by its files, the shape of one step of each observation, and its networks."""
        return cls(
            files=files,
            observations={key: list(shapes[key]) for key in sorted(shapes)},
            weights=sum(w.numel() for net in algo.nets.values() for w in net.parameters()),
            constant=algo.preprocess.normalization.constant,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``results.json``; demos are counted rather than named."""
        files = [
            {**asdict(f), "failures": len(f.failures), "held_out": len(f.held_out)}
            for f in self.files
        ]
        return {
            "files": files,
            "observations": self.observations,
            "weights": self.weights,
            "constant": self.constant,
        }

    @property
    def words(self) -> str:
        """Return the description in one line."""
        files = [file.words for file in self.files[:SHOWN_FILES]]
        if len(self.files) > SHOWN_FILES:
            rest = self.files[SHOWN_FILES:]
            files.append(
                f"{counted(len(rest), 'more file')}, {counted(sum(file.demos for file in rest), 'demo')}"
            )
        shapes = [f"{key} {_shape_words(shape)}" for key, shape in self.observations.items()]
        parts = [*files, f"observations {', '.join(shapes)}", f"network {self.weights:,} weights"]
        if self.constant:
            found = [f"{key} {_place_words(places)}" for key, places in self.constant.items()]
            parts.append(f"constant, so not scaled: {', '.join(found)}")
        return ("training data: " if files else "") + "; ".join(parts)


def choice_warnings(config: Config, data: TrainingData) -> list[str]:
    """Return a line for failures and one for held-out demos of each file without an explicit filter key.

    Algorithms that learn from rewards get no warning, because they need failures.
    """
    if config.train.hdf5_filter_key is not None:
        return []
    from_rewards = config.algo.data_needs(config).transitions is not None
    lines = []
    for file in data.files:
        if file.filter_key not in (None, TRAIN_MASK):
            continue
        within = "" if file.filter_key is None else f" --filter-key {file.filter_key}"
        path = file.path if file.shards is None else "FILE"
        again = "" if file.shards is None else " (on the files, before imitate dataset shard)"
        if file.failures and not from_rewards:
            lines.append(
                f"warning: {file.path}: {_some(file.failures)} failed and would be imitated; to leave failures out: "
                f"imitate dataset filter {path} solved --success{within} --in-place{again}, "
                "then --set train.hdf5_filter_key=solved"
            )
        if file.held_out:
            lines.append(
                f"warning: {file.path}: {_some(file.held_out)} from the validation mask would "
                f"also be trained on, because the file has no filter key '{TRAIN_MASK}': "
                "write one (imitate dataset split), or use --set "
                f"train.hdf5_filter_key={ALL_DEMOS}"
            )
    return lines


def with_filter_key(entry: DatasetConfig, config: Config, files: DataFiles) -> DatasetConfig:
    """Return a new run's data entry, with the mask ``train`` if no demos are chosen and the file has this mask.

    The run's configuration then contains the mask, so a run that was begun without it resumes unchanged.
    """
    if entry.filter_key is not None or config.train.hdf5_filter_key is not None:
        return entry
    if entry.weight <= 0:
        return entry
    has_mask = TRAIN_MASK in files.outline(entry.path).filter_keys
    return entry.model_copy(update={"filter_key": TRAIN_MASK}) if has_mask else entry


def shares_of(
    config: Config, sources: Sequence[DataSource], files: DataFiles
) -> tuple[FileShare, ...]:
    """Return the share of each entry of ``train.data`` used for training.

    Args:
        config: resolved configuration.
        sources: parts of files to train on.
        files: the open files of the sources.
    """
    return tuple(_shares(config, sources, files))


def _shares(config: Config, sources: Sequence[DataSource], files: DataFiles) -> Iterator[FileShare]:
    validation = config.train.hdf5_validation_filter_key or VALID_MASK
    for number, group in itertools.groupby(sources, key=lambda source: source.entry):
        path = (config.train.data or ())[number].path
        shards = shards_at(path)
        if shards is None:
            for source in group:
                yield replace(_share(files.open(source.path), source, validation), path=path)
        else:
            yield share_of_shards(shards, list(group), validation)


def share_of_shards(
    shards: ShardFolder, sources: Sequence[DataSource], validation: str
) -> FileShare:
    """Return the share of a folder of shards, from its index.

    Args:
        shards: the folder.
        sources: the shards with chosen demos.
        validation: mask of the validation demos.
    """
    by_name = {shard.file: shard for shard in shards.index.shards}
    filter_key = sources[0].filter_key
    lengths: list[int] = []
    failures: list[str] = []
    held_out: list[str] = []
    for source in sources:
        shard = by_name[source.path.name]
        chosen = set(source.among(shard.chosen(filter_key)))
        held = set(shard.filter_keys.get(validation, ())) if filter_key != validation else set()
        for demo, length, success in zip(shard.demos, shard.lengths, shard.success, strict=True):
            if demo not in chosen:
                continue
            lengths.append(length)
            if success is False and LABELLED not in shards.index.arrays:
                failures.append(demo)
            if demo in held:
                held_out.append(demo)
    return FileShare(
        path=shards.place,
        filter_key=filter_key,
        demos=len(lengths),
        of=sum(len(shard.demos) for shard in shards.index.shards),
        steps=sum(lengths),
        longest=max(lengths, default=0),
        failures=tuple(failures),
        held_out=tuple(held_out),
        shards=len(sources),
    )


def _share(file: DatasetFile, source: DataSource, validation: str) -> FileShare:
    chosen = source.chosen(file)
    masks = file.filter_keys()
    held_out = set(masks.get(validation, ())) if source.filter_key != validation else set()
    lengths = [file.length(demo) for demo in chosen]
    return FileShare(
        path=str(source.path),
        filter_key=source.filter_key,
        demos=len(chosen),
        of=len(file.demos()),
        steps=sum(lengths),
        longest=max(lengths, default=0),
        failures=tuple(demo for demo in chosen if _failed(file, demo)),
        held_out=tuple(demo for demo in chosen if demo in held_out),
    )


def _failed(file: DatasetFile, demo: str) -> bool:
    """Return true if the attribute ``success`` marks a failure; expert labels are valid even in failed episodes."""
    return file.success(demo) is False and not file.has(demo, LABELLED)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_DEMOS]) + (", ..." if len(names) > SHOWN_DEMOS else "")
    return f"{len(names)} demo{'s' if len(names) > 1 else ''} ({shown})"


def _place_words(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:SHOWN_DEMOS]))
    return f"[{shown}{', ...' if len(places) > SHOWN_DEMOS else ''}]"


def _shape_words(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if shape else "1"
