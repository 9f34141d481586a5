"""Tables of results over seeds: for the screen, as CSV, Markdown, LaTeX and JSON."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from imitate.errors import UserError, nearest
from imitate.system.run_folder import to_json, write_text
from imitate.system.statistics import Estimate, Statistic
from imitate.system.text import mean_text, rate_text, significant
from imitate.train.sweep.curves import LONGEST, Setting, algorithm_name, words
from imitate.train.sweep.over_seeds import MEASURES, Measure, estimate_of

Cells = tuple[list[str], list[list[str]]]
INTERVALS = {
    "mean": "Student's t interval",
    "iqm": "percentile bootstrap over seeds",
    "median": "percentile bootstrap over seeds",
}
MOST_COLUMNS = 4
"""Largest number of keys with a column each; if settings differ in more keys, only the JSON contains them."""
_OF_LOSS = re.compile(
    r"^(?!rnn|transformer|ema|optim_params)(.*\.)?(enabled|discount|\w*loss\w*|\w+_weight)$"
)
"""Keys of an algorithm's section that decide the scale of its loss, not its network."""
NAMES = {"mean": "mean", "iqm": "interquartile mean", "median": "median"}


def caption(settings: Sequence[Setting], statistic: Statistic) -> str:
    """Return a line that explains the numbers in a table of settings."""
    measures = _compared(settings)
    deviation = ", ± their standard deviation" if any(m.is_mean for m in measures.values()) else ""
    losses = any(m.tag.endswith("/Loss") for m in measures.values()) and losses_differ(settings)
    kinds = "; losses of different scales are not comparable" if losses else ""
    return (
        f"{NAMES[statistic]} over training seeds{deviation} (95 % interval: {INTERVALS[statistic]}, "
        f"at least as wide as that of the episodes){kinds}"
    )


def losses_differ(settings: Sequence[Setting]) -> bool:
    """Return true if the runs of the settings have losses of different scales."""
    return len({loss_kind(setting) for setting in settings}) > 1


def loss_kind(setting: Setting) -> str:
    """Return the algorithm of a setting and the values that decide the scale of its loss, as JSON."""
    config = setting.curves[0].config
    algo = config.get("algo", {})
    parts = {key: value for key, value in _leaves(algo) if _OF_LOSS.search(key)}
    return json.dumps(
        [config.get("algo_name"), parts, config.get("train", {}).get("action_config")]
    )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the dotted keys of a section with their values; a disabled part has only its key ``enabled``."""
    off = prefix and tree.get("enabled") is False
    for key, value in sorted(tree.items()):
        if isinstance(value, Mapping):
            yield from () if off else _leaves(value, f"{prefix}{key}.")
        elif not off or key == "enabled":
            yield f"{prefix}{key}", value


def as_json(settings: Sequence[Setting], statistic: Statistic) -> list[dict[str, Any]]:
    """Return a dictionary per setting: label, values, seeds, and each measure with its value per seed."""
    return [
        {
            "label": setting.label,
            "values": dict(setting.values),
            "seeds": list(setting.seeds),
            "seeds_wanted": setting.wanted,
            "runs": [str(curve.folder) for curve in setting.curves],
            "statistic": statistic,
            "confidence": 0.95,
            "measures": {
                name: {
                    "per_seed": [measure.of(curve) for curve in setting.curves],
                    **(
                        made._asdict() if (made := estimate_of(setting, measure, statistic)) else {}
                    ),
                }
                for name, measure in _present(settings).items()
            },
        }
        for setting in settings
    ]


def cells(settings: Sequence[Setting], statistic: Statistic) -> Cells:
    """Return header and rows to read: values, seeds, then each measure, such as ``86.0 % (79.1 - 93.4)``."""
    return _cells(settings, statistic, _for_people)


def save_table(settings: Sequence[Setting], statistic: Statistic, path: Path) -> Path:
    """Write the table in the format of the file's suffix: .csv, .md, .tex or .json.

    Raises:
        UserError: the suffix is none of these.
    """
    forms = {".csv": csv_text, ".md": markdown_text, ".tex": latex_text, ".json": _json_text}
    if path.suffix.lower() not in forms:
        raise UserError(
            f"{path}: a table cannot be written as '{path.suffix}'; {nearest(path.suffix, forms)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, forms[path.suffix.lower()](settings, statistic))
    return path


def csv_text(settings: Sequence[Setting], statistic: Statistic) -> str:
    """Return CSV of plain numbers (rates in [0, 1]): statistic, interval, deviation and n of each measure."""
    measures, keys = _present(settings), list({key: 0 for s in settings for key in s.values})
    keys = keys if len(keys) <= MOST_COLUMNS else []
    parts = ("", "_low", "_high", "_std", "_n")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "setting",
            *keys,
            "seeds",
            "statistic",
            *(f"{m}{part}" for m in measures for part in parts),
        ]
    )
    for setting in settings:
        row: list[Any] = [setting.label, *(words(setting.values.get(key, "")) for key in keys)]
        row += [len(setting.seeds), statistic]
        for measure in measures.values():
            row += estimate_of(setting, measure, statistic) or [None] * len(parts)
        writer.writerow(row)
    return text.getvalue()


def markdown_text(settings: Sequence[Setting], statistic: Statistic) -> str:
    """Return a Markdown table and a line that explains its numbers."""
    header, rows = cells(settings, statistic)
    lines = [header, ["---"] * len(header), *rows]
    table = "".join("| " + " | ".join(c.replace("|", r"\|") for c in row) + " |\n" for row in lines)
    return f"{table}\n{caption(settings, statistic)}\n"


def latex_text(settings: Sequence[Setting], statistic: Statistic) -> str:
    """Return a LaTeX tabular that uses the package booktabs."""
    header, rows = _cells(settings, statistic, _for_latex)
    left = 1 + len(_keys(settings))
    lines = [
        f"% {caption(settings, statistic)}",
        rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}",
        r"\toprule",
        " & ".join(map(_escaped, header)) + r" \\",
        r"\midrule",
        *(" & ".join([*map(_escaped, row[:left]), *row[left:]]) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _json_text(settings: Sequence[Setting], statistic: Statistic) -> str:
    return to_json(as_json(settings, statistic), indent=2) + "\n"


def _cells(
    settings: Sequence[Setting],
    statistic: Statistic,
    shown: Callable[[Estimate, Measure], str],
) -> Cells:
    measures, keys = _compared(settings), _keys(settings)
    header = ["setting", *keys, "seeds", *(measure.words for measure in measures.values())]
    rows = []
    for setting in settings:
        row = [setting.label, *(words(setting.values.get(key, "")) for key in keys)]
        row.append(_seeds(setting))
        for measure in measures.values():
            made = estimate_of(setting, measure, statistic)
            row.append("-" if made is None else shown(made, measure))
        rows.append(row)
    return header, rows


def _keys(settings: Sequence[Setting]) -> list[str]:
    """Return the keys that get a column each; none if they are many or long, or if the labels have them all."""
    texts = {key: "" for setting in settings for key in setting.values}
    pairs = [(s.label, key, words(s.values.get(key, ""))) for s in settings for key in texts]
    if len(texts) > MOST_COLUMNS or any(len(text) > LONGEST for _, _, text in pairs):
        return []
    said = all(
        ("=" in label and text in label) or (key == "algo_name" and algorithm_name(text) in label)
        for label, key, text in pairs
    )
    return [] if said else list(texts)


def _compared(settings: Sequence[Setting]) -> dict[str, Measure]:
    """Return the measures to compare; losses of different scales are left out unless there is nothing else."""
    found = _present(settings)
    if not losses_differ(settings):
        return found
    return {name: m for name, m in found.items() if not m.tag.endswith("/Loss")} or found


def _present(settings: Sequence[Setting]) -> dict[str, Measure]:
    """Return the measures that some run has; returns that repeat the success rate are left out.

    The best return is shown only if no success is known.
    """
    curves = [curve for setting in settings for curve in setting.curves]
    found = {
        name: measure
        for name, measure in MEASURES.items()
        if any(measure.of(curve) is not None for curve in curves)
    }
    if "success_best" in found:
        found.pop("return_best", None)
        rate, returned = MEASURES["success_last"], MEASURES["return_last"]
        if all(rate.of(curve) == returned.of(curve) for curve in curves):
            found.pop("return_last", None)
    return found


def _seeds(setting: Setting) -> str:
    n = len(setting.curves)
    return str(n) if n == setting.wanted else f"{n} of {setting.wanted}"


def _for_people(made: Estimate, measure: Measure) -> str:
    if measure.is_rate:
        return rate_text(made.value, made[1:3], digits=1)
    return mean_text(made.value, made.std if measure.is_mean else None, made[1:3])


def _for_latex(made: Estimate, measure: Measure) -> str:
    value = _for_people(made._replace(low=None, high=None), measure)
    value = value.replace(" %", r"\,\%").replace("±", r"\pm")
    ends = [end for end in made[1:3] if end is not None]
    if not ends:
        return f"${value}$"
    words = [f"{100 * end:.1f}" if measure.is_rate else significant(end, 4) for end in ends]
    return f"${value}\\ [{', '.join(words)}]$"


def _escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text
