"""Text output of ``imitate eval``: table of results, means, comparison of two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imitate.evaluate.result import EvalResult
    from imitate.functional.statistics import PairedComparison


def table(results: Sequence[EvalResult]) -> list[str]:
    """Return the table's lines, a row per checkpoint."""
    header = ("checkpoint", "env", "success", "95 % interval", "return", "steps", "seconds")
    rows = [header]
    for result in results:
        low, high = result.interval
        rows.append(
            (
                short_name(result.checkpoint),
                result.env_name,
                f"{result.successes}/{len(result.episodes)} = {100 * result.success_rate:.1f} %",
                f"{100 * low:.1f} - {100 * high:.1f} %",
                f"{result.mean_return:.3g}",
                f"{result.mean_length:.1f}",
                f"{result.wall_s:.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    seeds = results[0].seeds
    lines.append(f"seeds {seeds[0]} - {seeds[-1]}, horizon {results[0].horizon}")
    lines += [
        f"{short_name(result.checkpoint)} in {result.env_name}: the environment itself ended failed episodes after at "
        f"most {result.ended_by_env} steps, before the horizon"
        for result in results
        if result.ended_by_env is not None
    ]
    lines += [f"video: {result.video}" for result in results if result.video]
    return lines


def mean_lines(results: Sequence[EvalResult]) -> list[str]:
    """Return each checkpoint's mean success over its environments, if there are several."""
    rates: dict[str | None, list[float]] = {}
    for result in results:
        rates.setdefault(result.checkpoint, []).append(result.success_rate)
    return [
        f"{short_name(checkpoint)}: mean of {len(found)} environments {100 * fmean(found):.1f} %"
        for checkpoint, found in rates.items()
        if len(found) > 1
    ]


def comparison_lines(comparison: PairedComparison | None) -> list[str]:
    """Return the lines of a comparison of two checkpoints on the same seeds."""
    if comparison is None:
        return []
    c = comparison
    return [
        f"paired on {c.n} seeds: first - second = {100 * c.difference:+.1f} % "
        f"(95 % interval {100 * c.low:+.1f} to {100 * c.high:+.1f} %); "
        f"only the first succeeds {c.only_first} times, only the second {c.only_second}; "
        f"p = {c.p_value:.3g} (exact McNemar test)"
    ]


def compare(paths: Sequence[Path], results: Sequence[EvalResult]) -> PairedComparison | None:
    """Compare two checkpoints on the same seeds of the same environments, over all episodes."""
    half = len(results) // 2
    first, second = results[:half], results[half:]
    if len(paths) != 2 or [r.env_name for r in first] != [r.env_name for r in second]:
        return None
    from imitate.functional.statistics import compare_paired

    return compare_paired(
        [success for result in first for success in result.success],
        [success for result in second for success in result.success],
    )


def cpu_warning(results: Sequence[EvalResult]) -> str | None:
    """Return a warning where compared episodes were played on several models of processors."""
    models = sorted({model for result in results for model in result.cpu_models})
    if len(models) < 2:
        return None
    return (
        f"the compared episodes were played on {len(models)} CPU models "
        f"({'; '.join(models)}), whose last digits differ: single episodes may differ for "
        "this reason alone; compare on one model"
    )


def short_name(checkpoint: str | None) -> str:
    """Return a checkpoint's name in a table: experiment, run and file, such as ``lift_bc/20261123131539/last.pth``."""
    if checkpoint is None:
        return "-"
    parts = Path(checkpoint).parts
    return "/".join([*(part for part in parts[:-1] if part != "checkpoints"), parts[-1]][-3:])
