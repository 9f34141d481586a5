"""Summary of the quickstart's stages: writes results.json and prints it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from imitate.train.summary import deploy_lines


def main(folder: Path) -> None:
    """Read the stages' files in ``folder`` and write ``results.json`` there."""
    training = json.loads((folder / "train.json").read_text())
    evaluation = json.loads((folder / "eval.json").read_text())["evaluations"][0]
    stages = dict(line.split("\t") for line in (folder / "times.tsv").read_text().splitlines())
    times = {name: int(seconds) for name, seconds in stages.items()}
    video = folder / "episodes.mp4"
    results: dict[str, Any] = {
        "task": evaluation["env"],
        "algo": training["algo"],
        "success_rate": evaluation["success_rate"],
        "success_rate_95": evaluation["success_rate_95"],
        "episodes": evaluation["episodes"],
        "seeds": {
            **training["seeds"],
            "evaluation": [episode["seed"] for episode in evaluation["per_episode"]],
        },
        "times_s": {**times, "total": sum(times.values())},
        "train_cpu_s": training["times"]["train_cpu_s"],
        "demonstrations": training["datasets"],
        "checkpoint": training["checkpoint"],
        "video": str(video) if video.is_file() else None,
        "packages": training["packages"],
    }
    target = folder / "results.json"
    target.write_text(json.dumps(results, indent=2) + "\n")
    print("\n".join(_lines(results, target)))


def _lines(results: dict[str, Any], target: Path) -> list[str]:
    low, high = results["success_rate_95"]
    stages = ", ".join(f"{name} {seconds} s" for name, seconds in results["times_s"].items())
    return [
        "",
        f"== {results['task']}: {100 * results['success_rate']:.0f} % success over {results['episodes']} episodes "
        f"(95 % interval {100 * low:.0f} - {100 * high:.0f} %)",
        f"   checkpoint  {results['checkpoint']}",
        f"   video       {results['video'] or 'none: no OpenGL library'}",
        f"   results     {target}",
        f"   times       {stages}",
        "",
        "Deploy it:",
        "",
        *(f"    {line}" for line in deploy_lines(results["checkpoint"])),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
