"""Which environments a training is evaluated in, and what the policy is told there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from imitate.config import Config, DatasetConfig
from imitate.config.section import merged
from imitate.data import DatasetFile
from imitate.data.language import TASK_ATTRS, instruction_of
from imitate.envs.migration import fitted


def environments(config: Config, tasks: Sequence[str] = ()) -> tuple[dict[str, Any], ...]:
    """The environments of the files with `eval`, with the configuration's changes laid over, each once.

    Args:
        config: with absolute data paths.
        tasks: instructions of a policy that is conditioned on language; each environment is then there once for every
            instruction in its file that the policy knows.

    Returns:
        env_args; with several, `key` is a distinct name of each. `lang` is the instruction.
    """
    metas: list[dict[str, Any]] = []
    keys: list[str] = []
    entries = config.train.data or ()
    for entry in [entry for entry in entries if entry.eval] or entries[:1]:
        for key, meta in _of_file(entry, config, tasks):
            if meta not in metas:
                metas.append(meta)
                keys.append(key)
    if len(metas) == 1:
        return tuple(metas)
    return tuple(
        {**meta, "key": key} for meta, key in zip(metas, _distinct(keys, metas), strict=True)
    )


def label(env_meta: Mapping[str, Any]) -> str:
    """The name under which an environment's numbers are shown."""
    return str(env_meta.get("key") or env_meta.get("env_name", "?"))


def file_name(text: str) -> str:
    """A label with nothing in it that a file's name may not have."""
    return re.sub(r"[^\w.-]+", "_", text)


def _of_file(
    entry: DatasetConfig, config: Config, tasks: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Name and env_args of each environment that a file asks for."""
    experiment = config.experiment
    with DatasetFile(entry.path) as file:
        meta = merged(file.env_meta, experiment.env_meta_update_dict.to_dict())
        told: list[str] = []
        if tasks:
            found = {
                instruction_of(file.attrs(demo, TASK_ATTRS), entry.lang) for demo in file.demos()
            }
            told = [task for task in tasks if task in found]
    if experiment.rollout.enabled:
        meta = fitted(meta)
    names = [experiment.env or meta.get("env_name"), *(experiment.additional_envs or ())]
    own = entry.key if len(names) == 1 else None
    return [
        (own or str(name), {**meta, "env_name": name, **lang})
        for name in names
        for lang in ([{"lang": task} for task in told] or [{}])
    ]


def _distinct(keys: Sequence[str], metas: Sequence[dict[str, Any]]) -> list[str]:
    """Names made different by the instruction, or else by a number."""
    names = [
        f"{key}: {meta['lang']}" if keys.count(key) > 1 and "lang" in meta else key
        for key, meta in zip(keys, metas, strict=True)
    ]
    return [
        f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]
