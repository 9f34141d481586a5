"""Report on a checkpoint."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from imitate.algo.base.acting import OMITTED
from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import variant_of
from imitate.cli.reports.layout import Report, environment_words, pairs, shape_words, table
from imitate.config import load_config
from imitate.policy.checkpoint import algo_from_checkpoint, control_freq_of, load_checkpoint
from imitate.policy.renaming import rename_words
from imitate.system.plain_files import MAX_SETTINGS, json_value
from imitate.system.run_folder import find_checkpoint
from imitate.system.text import counted

_OF_TRAINING = ("experiment.", "train.max_grad_norm", "train.batch_size", "algo.optim_params.")
DECISIONS = 5
"""Number of actions of a planning policy over which the planning time is measured."""
REASONS = {
    "best.pth": "the best by success rate",
    "best_return.pth": "the best by return",
    "best_valid.pth": "the best by validation loss, which is a poor measure of success",
    "last.pth": "the last",
}


def describe(path: Path) -> Report:
    """Describe a checkpoint: algorithm, data, progress, and the settings that differ from the defaults."""
    ckpt = load_checkpoint(path)
    algo = algo_from_checkpoint(ckpt, source=path)
    defaults = load_config({"algo_name": ckpt["algo_name"]}).to_dict()
    shapes, env, state = ckpt["shape_metadata"], ckpt["env_metadata"], ckpt.get("train_state", {})
    return {
        "kind": "checkpoint",
        "path": str(path),
        "size_mb": find_checkpoint(path).stat().st_size / 1e6,
        "algo": ckpt["algo_name"],
        "variant": variant_of(algo),
        "parameters": sum(p.numel() for p in algo.nets.parameters()),
        "acting_only": OMITTED in ckpt["model"],
        "epoch": state.get("epoch"),
        "step": state.get("step"),
        "train_cpu_s": state.get("cpu_s"),
        "decision_ms": decision_ms(algo),
        "env_name": env.get("env_name"),
        "env_type": env.get("type"),
        "env_version": env.get("env_version"),
        "robots": env.get("env_kwargs", {}).get("robots"),
        "control_freq": control_freq_of(ckpt),
        "obs_shapes": {**shapes["all_shapes"], **(shapes.get("raw_shapes") or {})},
        "critic_keys": sorted(algo.encoding.shapes("critic")),
        "action_dim": shapes["ac_dim"],
        "action_low": shapes.get("action_low"),
        "action_high": shapes.get("action_high"),
        "normalizes_obs": algo.preprocess.normalizes_obs,
        "normalizes_actions": algo.preprocess.normalizes_actions,
        "environments": [meta.get("key") for meta in ckpt.get("environments") or ()],
        "rename": ckpt.get("rename", {}),
        "instructions": (ckpt.get("language") or {}).get("instructions", []),
        "changed_settings": dict(_settings(defaults, ckpt)),
        "versions": ckpt.get("versions", {}),
        "provenance": ckpt.get("provenance", {}),
    }


def _settings(defaults: Mapping[str, Any], ckpt: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings that differ from the defaults; settings of encoders that no observation uses are left out.

    For a policy imported from another toolkit, settings of the training are left out too.
    """
    config = json_value(ckpt["config"], MAX_SETTINGS)
    groups = config["observation"]["modalities"].values()
    unused = {name for group in groups for name in group} - {
        name for group in groups for name, keys in group.items() if keys
    }
    silent = tuple(f"observation.encoder.{name}." for name in unused)
    if "imported_from" in ckpt.get("provenance", {}):
        silent += _OF_TRAINING
    for key, value in _differences(defaults, config):
        if not key.startswith(silent):
            yield key, value


def _differences(
    default: Mapping[str, Any], value: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values that differ from the default; of a disabled section only ``enabled``."""
    off = prefix and value.get("enabled") is False
    for key, item in value.items():
        if off and key != "enabled":
            continue
        name = f"{prefix}{key}"
        other = default.get(key)
        if isinstance(item, Mapping) and isinstance(other, Mapping):
            yield from _differences(other, item, f"{name}.")
        elif item != other and name != "algo_name":
            yield name, item


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    yield from pairs(
        [
            ("file", f"{report['path']} ({report['size_mb']:.1f} MB)"),
            ("algorithm", report["variant"]),
            ("parameters", f"{report['parameters']:,}"),
            *(
                [("networks", "only those that act: training cannot be resumed")]
                if report["acting_only"]
                else []
            ),
            ("trained", _training_words(report)),
            ("environment", environment_words(report)),
            ("control rate", _rate(report["control_freq"])),
            ("actions", f"{report['action_dim']}, {_limits(report)}"),
            ("normalizes", _normalization_words(report)),
            *_decision(report),
            *_origin(report),
        ]
    )
    for entry in report["provenance"].get("datasets", ()):
        taken = entry.get("training_demos", entry.get("num_demos"))
        sizes = [
            counted(entry[key], noun) if key in entry else f"? {noun}s"
            for key, noun in (("num_demos", "demo"), ("num_steps", "step"))
        ]
        if taken is not None:
            sizes.append(f"{taken} taken")
        sizes.append(f"weight {entry.get('weight', 1.0):g}")
        if entry.get("sha256"):
            sizes.append(f"sha256 {entry['sha256'][:12]}")
        yield f"trained on     {entry.get('path')}: {', '.join(sizes)}"
    if len(report["environments"]) > 1:
        yield from pairs([("environments", ", ".join(map(str, report["environments"])))])
    if report["rename"]:
        yield from pairs([("takes", rename_words(report["rename"]))])
    for instruction in report["instructions"]:
        yield from pairs([("instruction", instruction)])
    yield ""
    yield from table(
        ("observation", "shape"),
        [(key, _seen_words(report, key)) for key in report["obs_shapes"]],
    )
    yield ""
    yield from table(
        ("settings that differ from the default", "value"),
        [(key, json.dumps(value)) for key, value in report["changed_settings"].items()],
    )


def _seen_words(report: Report, key: str) -> str:
    words = shape_words(report["obs_shapes"][key])
    return f"{words}, seen only by critics" if key in report["critic_keys"] else words


def decision_ms(algo: Algo) -> float | None:
    """Return the median milliseconds that a planning policy needs for an action here; None for other policies."""
    if getattr(algo, "planner", None) is None:
        return None
    algo.set_eval()
    obs = {
        key: torch.zeros(1, *shape, device=algo.device) for key, shape in algo.obs_shapes.items()
    }
    goal = {
        key: torch.zeros(1, *shape, device=algo.device) for key, shape in algo.goal_shapes.items()
    }
    state, times = algo.initial_state(1), []
    with torch.random.fork_rng(devices=[]):
        for _ in range(DECISIONS):
            began = time.perf_counter()
            _, state, _ = algo.act(obs, state, goal or None)
            times.append(time.perf_counter() - began)
    return 1000.0 * median(times)


def _decision(report: Report) -> list[tuple[str, str]]:
    """Return the row on the time per action of a planning policy; [] for other policies."""
    taken = report["decision_ms"]
    words = f"{taken or 0:.1f} ms each here, by planning (median of {DECISIONS})"
    return [] if taken is None else [("decisions", words)]


def _training_words(report: Report) -> str:
    if report["epoch"] is None:
        return f"the file does not contain the progress{_reason(report)}"
    return f"epoch {report['epoch']}, {counted(report['step'], 'update')}{_reason(report)}"


def _origin(report: Report) -> list[tuple[str, str]]:
    """Return rows on the versions of the software that wrote the checkpoint, or that read an imported one."""
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    origin = report["provenance"].get("imported_from")
    if origin is not None:
        return [
            ("format", f"{origin}'s"),
            ("read by", versions),
        ]
    commit = report["provenance"].get("git_commit") or "none"
    return [("versions", versions), ("git commit", commit)]


def _reason(report: Report) -> str:
    """Return why a run kept the checkpoint, such as `` (the best by return)``, according to the file's name."""
    reason = REASONS.get(Path(report["path"]).name)
    return "" if reason is None else f" ({reason})"


def _rate(control_freq: float | None) -> str:
    return "not said" if control_freq is None else f"{control_freq:g} Hz"


def _limits(report: Report) -> str:
    low, high = report["action_low"], report["action_high"]
    if low is None or high is None:
        return "not clipped"
    return f"clipped to [{min(low):g}, {max(high):g}]"


def _normalization_words(report: Report) -> str:
    what = [name for name in ("obs", "actions") if report[f"normalizes_{name}"]]
    return " and ".join(what) or "nothing"
