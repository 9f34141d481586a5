"""Tables on each algorithm's page: its ready configurations and its options.

A comment on a page of docs/algorithms marks the place of a table, and the site's build writes the table there
(mkdocs.yml, ``hooks``):

    <!-- generated: options -->
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from imitate.config import Config, load_config
from imitate.config.algorithms import available, find
from imitate.config.loading import names
from imitate.config.schema import Key, keys

PLACE = re.compile(r"^<!-- generated: (?P<part>[a-z ]+) -->$", re.MULTILINE)
OPTIMIZER = re.compile(r"\b(optim_params\.\w+|optimizer)\.")
"""Configuration keys of an optimizer, which the table leaves out."""
PAPER = "paper/"
"""Prefix of the names of configurations of published results, which are too many for a row each."""
LONGEST_CELL = 10
"""Largest number of changed options that a row names; if there are more, it gives their number."""


def algorithms() -> list[str]:
    """Return the names of this package's algorithms that learn; those that only act, such as a script, have no page."""
    modules = {name: find(name).to_class.__module__ for name in available()}
    return [
        name
        for name, module in modules.items()
        if module.startswith("imitate.algo.") and not module.startswith("imitate.algo.slots.")
    ]


@cache
def ready() -> dict[str, list[str]]:
    """Return the names of the ready configurations of each algorithm."""
    found: dict[str, list[str]] = {}
    for name in names():
        found.setdefault(load_config(name).algo_name, []).append(name)
    return found


def configurations(algo_name: str) -> str:
    """Return the table of the ready configurations."""
    own = ready().get(algo_name, [])
    rows = [
        "| `--config` | data | length | batch | learning rate | changed options |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(name) for name in own if not name.startswith(PAPER)]
    papers = Counter("/".join(name.split("/")[:2]) for name in own if name.startswith(PAPER))
    text = "\n".join(rows) + "\n"
    for folder, count in papers.items():
        text += f"\nAnd {count} in `configs/{folder}`, with the settings of published results.\n"
    return text


def _row(name: str) -> str:
    config = load_config(name)
    cells = [f"`{name}`", _data(config), _length(config), str(config.train.batch_size)]
    return f"| {' | '.join([*cells, _rates(config), _changes(config)])} |"


def _data(config: Config) -> str:
    """Return the data that the configuration names, or the environment in which it learns."""
    online = config.train.online
    paths = [Path(entry.path).name for entry in config.train.data or ()]
    file = f"`{paths[0]}`" if paths else "`--dataset`"
    if not online.enabled:
        return file
    env = online.env
    where = env if isinstance(env, str) else env and env["env_name"]
    with_data = online.demo_ratio > 0 or bool(paths)
    place = f"`{where}`" if where else "`--env`, or that of the data"
    return f"{place} and {file}" if with_data else place


def _length(config: Config) -> str:
    """Return the number of updates, or of environment steps, of the whole training."""
    per_epoch = config.experiment.epoch_every_n_steps
    unit = "steps" if config.train.online.enabled else "updates"
    epochs = config.train.num_epochs
    if per_epoch is None or epochs is None:
        return "passes over the data"
    return f"{epochs * per_epoch:,} {unit}"


def _rates(config: Config) -> str:
    """Return the initial learning rates; one number if all networks have the same."""
    rates = {
        key.split(".")[-3]: value
        for key, value in _leaves(config.algo.to_dict())
        if key.endswith("learning_rate.initial")
    }
    if len(set(rates.values())) == 1:
        return f"{next(iter(rates.values())):g}"
    return ", ".join(f"{name} {value:g}" for name, value in rates.items())


def _changes(config: Config) -> str:
    """Return the options of the algorithm that differ from their defaults, except those of optimizers."""
    defaults = dict(_leaves(load_config({"algo_name": config.algo_name}).algo.to_dict()))
    changed = [
        f"`{key}={json.dumps(value)}`"
        for key, value in _leaves(config.algo.to_dict())
        if not OPTIMIZER.search(key) and (key not in defaults or defaults[key] != value)
    ]
    if len(changed) <= LONGEST_CELL:
        return ", ".join(changed) or "none"
    shown = ", ".join(changed[:LONGEST_CELL])
    return f"{shown} and {len(changed) - LONGEST_CELL} more"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def options(algo_name: str) -> str:
    """Return the table of the section ``algo``, and the algorithm's defaults of the shared sections."""
    rows = option_keys(algo_name)
    text = f"`imitate config keys {algo_name}` prints them in a terminal.\n\n"
    text += _table(row for row in rows if not OPTIMIZER.search(row.path))
    optimizers = [row for row in rows if OPTIMIZER.search(row.path)]
    if optimizers:
        text += f"\n### Optimizers\n\n{_table(optimizers)}"
    shared = dict(_leaves(find(algo_name).section.tree_defaults))
    if not shared:
        return text
    rows_of_shared = [f"| `{key}` | `{json.dumps(value)}` |" for key, value in shared.items()]
    return (
        f"{text}\n### Changed defaults of other sections\n\n| key | default |\n|---|---|\n"
        + "\n".join(rows_of_shared)
        + "\n"
    )


def _table(rows: Iterable[Key]) -> str:
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.path}` | {row.kind} | {row.default} | {row.meaning} |" for row in rows]
    return "\n".join(lines) + "\n"


def option_keys(algo_name: str) -> list[Key]:
    """Return every option of an algorithm."""
    return list(keys(find(algo_name).section, "algo"))


PARTS = {"configurations": configurations, "options": options}


def filled(algo_name: str, text: str) -> str:
    """Return the page with its tables.

    Raises:
        KeyError: a comment names a table that cannot be generated.
    """
    return PLACE.sub(lambda match: PARTS[match["part"]](algo_name), text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the tables into the pages of algorithms. (A hook of MkDocs.)"""
    path = Path(page.file.src_path)
    if path.parent.name != "algorithms" or path.stem == "index":
        return markdown
    return filled(path.stem, markdown)
