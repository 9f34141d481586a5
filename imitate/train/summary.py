"""Summary of a finished run: results.json, the plot, a table, its checkpoints and the recommended one."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imitate.system.run_folder import BEST_FIRST, RunFolder, to_json, write_text
from imitate.system.text import counted, mean_text, rate_text
from imitate.train.console import duration
from imitate.train.metrics import MetricsFile
from imitate.train.outcomes import INTERVAL, KEPT
from imitate.train.state import History

LOW_SUCCESS = 0.6
PATHS = ("run", "checkpoint")
"""Keys of ``results.json`` whose values are paths."""
SINGLE_STEP = ("bc", "bc_gaussian", "bc_gmm", "bc_vae")
"""Algorithms that observe a single step; most human demonstrations need memory."""


def write_results(folder: RunFolder, results: Mapping[str, Any]) -> None:
    """Write results.json atomically, with absolute paths, which are valid from every folder."""
    paths = {key: str(Path(results[key]).absolute()) for key in PATHS if results.get(key)}
    write_text(folder.results, to_json({**results, **paths}, indent=2) + "\n")


def best_checkpoint(folder: RunFolder) -> Path | None:
    """Return the run's best checkpoint, otherwise its last one, or None."""
    for name in BEST_FIRST:
        if (folder.checkpoints / name).is_file():
            return folder.checkpoints / name
    return None


def summary_lines(results: Mapping[str, Any], *, advise: bool = True) -> list[str]:
    """Return the lines of the run's table, of code that uses the policy, and of advice if it seldom succeeds."""
    rows = [
        ("run", results["run"]),
        ("status", results["status"]),
        ("algorithm", results["algo"]),
        _progress(results),
        (
            "loss: train, valid",
            f"{_number(results['train_loss'])}, {_number(results['valid_loss'])}",
        ),
    ]
    for key in ("final", "best"):
        if results.get(key):
            measure, text = _outcome(results[key])
            rows.append((f"{measure}, {key}", text))
    times = results["times"]
    rows += [
        (
            "training time",
            f"{duration(times['train_wall_s'])} (CPU {duration(times['train_cpu_s'])})",
        ),
        ("evaluation time", duration(times["evaluation_wall_s"])),
        ("checkpoint", results["checkpoint"] or "none"),
        *_why(results.get("recommended")),
    ]
    width = max(len(label) for label, _ in rows)
    rule = "-" * (width + 42)
    lines = [rule, *(f"{label:<{width}}  {value}" for label, value in rows), rule]
    if results["checkpoint"]:
        lines += ["deploy:", *(f"    {line}" for line in deploy_lines(results["checkpoint"]))]
    return lines + (_next_policy(results) if advise else [])


def deploy_lines(checkpoint: str) -> list[str]:
    """Return lines of Python that act with a checkpoint."""
    return [
        "from imitate import policy_from_checkpoint",
        f"policy, _ = policy_from_checkpoint(ckpt_path={checkpoint!r}); policy.start_episode()",
        "action = policy(obs)",
    ]


def _next_policy(results: Mapping[str, Any]) -> list[str]:
    """Return advice if a single-step BC policy seldom succeeds."""
    final, algo = results.get("final"), results["algo"]
    rate = (final or {}).get("success_rate")
    if algo not in SINGLE_STEP or rate is None or rate >= LOW_SUCCESS:
        return []
    return [
        f"next: imitate diagnose {shlex.quote(str(results['run']))} ranks causes",
        f"    if the demonstrations wait or pause, where {algo} often fails because it observes a single step:",
        "    imitate config init FILE --algo flow_policy, or vq_bet, bc_rnn_gmm (docs/policies.md)",
    ]


def _why(chosen: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return table rows with the epoch of the recommended checkpoint and the reason for the choice."""
    if chosen is None:
        return []
    return [("", str(text)) for text in (chosen["words"], chosen["note"]) if text]


def _progress(results: Mapping[str, Any]) -> tuple[str, str]:
    """Return table rows on the progress; if the results have ``updates``, steps are environment steps."""
    done = f"{results['epoch']}, {results['step']}"
    if results.get("updates") is None:
        return "epochs, updates", done
    return "epochs, env steps, updates", f"{done}, {results['updates']}"


def _outcome(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return "success" or, where that is unknown, "return", and the text of an evaluation."""
    rate, interval = entry["success_rate"], entry.get("success_rate_95")
    episodes = entry.get("episodes")
    where = [f"epoch {entry['epoch']}"] + ([counted(episodes, "episode")] if episodes else [])
    returned = mean_text(
        entry["mean_return"], entry.get("return_std"), entry.get("mean_return_95"), INTERVAL
    )
    if rate is None:
        return "return", f"{returned}, {', '.join(where)}"
    if interval:
        where.append(f"{INTERVAL}{100 * interval[0]:.0f} - {100 * interval[1]:.0f} %")
    return "success", f"{rate_text(rate)} ({', '.join(where)}), return {returned}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def draw_curves(folder: RunFolder) -> Path | None:
    """Draw learning curves of `metrics.jsonl` as an image; return None if there is nothing to draw."""
    from imitate.train.sweep.curves import Setting, read_curves
    from imitate.train.sweep.plot import draw_settings

    if not any(r.get("kind") == "epoch" for r in MetricsFile(folder.metrics).records()):
        return None
    (curve,) = read_curves([folder.path])
    title = f"{curve.label}, {folder.path.name}"
    return draw_settings([Setting(title, {}, (curve,), 1)], [folder.curve], over="epoch")[0]


COMPARE = "compare checkpoints with imitate eval in a simulator, or imitate compare on the robot"


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint file of a run.

    Attributes:
        name: file name.
        epoch: epoch of its weights, or None if unknown.
        reason: reason why it was kept.
    """

    name: str
    epoch: int | None
    reason: str

    @property
    def words(self) -> str:
        """Describe the checkpoint, such as "best by success rate (epoch 50, 68 % of 50 episodes)"."""
        reason, _, number = self.reason.partition(": ")
        epoch = "epoch unknown" if self.epoch is None else f"epoch {self.epoch}"
        return f"{reason} ({', '.join(filter(None, (epoch, number)))})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def kept_checkpoints(
    folder: RunFolder, history: History, last_epoch: int | None
) -> list[KeptCheckpoint]:
    """Return the checkpoints of a run, in order of preference.

    Args:
        folder: folder of the run.
        history: records of its metrics.
        last_epoch: epoch of last.pth, or None if unknown.
    """
    present = {path.name for path in folder.checkpoints.glob("*.pth")}
    found: dict[str, KeptCheckpoint] = {}
    for kept in (*_bests(history), KeptCheckpoint("last.pth", last_epoch, "the last")):
        found[kept.name] = kept
    for name in BEST_FIRST:
        found.setdefault(name, KeptCheckpoint(name, None, "kept as one of the best"))
    numbered = [name for name in present if _epoch_of(name) is not None]
    for name in sorted(numbered, key=lambda name: _epoch_of(name) or 0):
        found[name] = KeptCheckpoint(name, _epoch_of(name), "kept because of its epoch")
    order = [*BEST_FIRST, *(name for name in found if name not in BEST_FIRST)]
    return [found[name] for name in order if name in present]


def recommended(kept: list[KeptCheckpoint]) -> KeptCheckpoint | None:
    """Return the checkpoint to use if a run folder is given, or None if the folder has none."""
    return next((checkpoint for checkpoint in kept if checkpoint.name in BEST_FIRST), None)


def caution(kept: list[KeptCheckpoint]) -> str | None:
    """Return a caution if no evaluation in an environment has compared the checkpoints, else None."""
    chosen = recommended(kept)
    if chosen is None or chosen.name != "last.pth":
        return None
    valid = next((checkpoint for checkpoint in kept if checkpoint.name == "best_valid.pth"), None)
    if valid is None:
        return f"no episodes were evaluated: {COMPARE}"
    return (
        f"{valid.name} (epoch {valid.epoch}) has the lowest validation loss, which is a "
        f"poor measure of success: {COMPARE}"
    )


def _bests(history: History) -> list[KeptCheckpoint]:
    found = []
    if history.best is not None:
        rate, mean, epoch = history.best
        episodes = history.rollouts.get(epoch, {}).get("Rollout/Episodes")
        of = "" if episodes is None else f" of {int(episodes)} episodes"
        kept = history.rollouts.get(epoch, {}).get(KEPT)
        of += "" if kept is None else ", bounds kept" if kept == 1.0 else ", BOUNDS NOT KEPT"
        if rate is None:
            words = f"best by return: {mean_text(mean)}{of}"
        else:
            words = f"best by success rate: {rate_text(rate)}{of}"
        found.append(KeptCheckpoint("best.pth", epoch, words))
    if history.best_return is not None:
        value, epoch = history.best_return
        found.append(
            KeptCheckpoint("best_return.pth", epoch, f"best by return: {mean_text(value)}")
        )
    if history.best_valid is not None:
        value, epoch = history.best_valid
        words = f"best by validation loss: {value:.4g}"
        found.append(KeptCheckpoint("best_valid.pth", epoch, words))
    return found


def _epoch_of(name: str) -> int | None:
    prefix, _, digits = Path(name).stem.rpartition("_")
    return int(digits) if prefix == "epoch" and digits.isdecimal() else None


def recommendation(
    folder: RunFolder, history: History, last_epoch: int | None
) -> Mapping[str, Any]:
    """Return entries for ``results.json``: the ``recommended`` checkpoint (or null) and all ``checkpoints``."""
    kept = kept_checkpoints(folder, history, last_epoch)
    chosen = recommended(kept)
    if chosen is None:
        return {"recommended": None, "checkpoints": []}
    return {
        "recommended": {**chosen.to_dict(), "words": chosen.words, "note": caution(kept)},
        "checkpoints": [checkpoint.to_dict() for checkpoint in kept],
    }
