"""Measurements of Stable-Baselines3, in a process of another interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.measuring import Contestant, Spent


class StableBaselines:
    """Process that measures the cases in peer_sb3.py.

    Args:
        python: interpreter that has stable-baselines3.
        device: device of the trainings, such as "cuda".
    """

    def __init__(self, python: Path, device: str = "cpu") -> None:
        script = Path(__file__).with_name("peer_sb3.py")
        self._process = subprocess.Popen(
            [str(python), str(script), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.version = str(self._read()["version"])

    def contestant(self, case: str) -> Contestant:
        """Return a contestant for one of its cases."""
        return lambda n: Spent(**self._measure(case, n))

    def _measure(self, case: str, n: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "n": n}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> StableBaselines:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
