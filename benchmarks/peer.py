"""Measurements of robomimic, in a process of another interpreter, or from recorded figures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import Contestant, Spent

RECORDED = Path(__file__).with_name("peer_recorded.json")


class Peer:
    """Measurements of robomimic's cases.

    Args:
        python: interpreter that has robomimic (with torch); None uses the recorded figures.
        source: robomimic's source folder, if it is not installed.
        data: path of the demonstrations.
        device: device of its trainings, such as "cuda".
    """

    def __init__(
        self, python: Path | None, source: Path | None, data: Path, device: str = "cpu"
    ) -> None:
        recorded = json.loads(RECORDED.read_text())
        self._figures: dict[str, float] = recorded["figures"]
        self.words = f"recorded figures of robomimic {recorded['version']} ({recorded['machine']})"
        self._process: subprocess.Popen[str] | None = None
        self._cases: list[str] = []
        if python is None:
            return
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if source is not None:
            environ["PYTHONPATH"] = str(source)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the peer writes to it)
        script = Path(__file__).with_name("peer_robomimic.py")
        self._process = subprocess.Popen(
            [str(python), str(script), str(data), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environ,
        )
        hello = self._read()
        self._cases = hello["cases"]
        self.words = f"robomimic {hello['robomimic']} with torch {hello['torch']}, same run"

    @property
    def live(self) -> bool:
        """True if robomimic runs in a process."""
        return self._process is not None

    @property
    def source(self) -> str:
        """Source of the figures, for the table."""
        return "same run" if self.live else "recorded"

    def contestants(self, case: str, data: Path | None = None) -> dict[str, Contestant]:
        """Return ``{"peer": ...}``, or an empty dict if it does not run or lacks torchvision for the case."""
        return (
            {"peer": lambda n: Spent(**self.measure(case, n, data))} if case in self._cases else {}
        )

    def source_of(self, case: str) -> str:
        """Return the source of a case's figure, for the table."""
        return "same run" if case in self._cases else "recorded"

    def per_s(self, case: str, spent: dict[str, Spent]) -> float:
        """Return robomimic's iterations per CPU second, measured or recorded."""
        return 1.0 / spent["peer"].cpu_s if "peer" in spent else self._figures[case]

    def figure(self, case: str) -> float:
        """Return a recorded figure."""
        return self._figures[case]

    def measure(self, case: str, n: int, data: Path | None = None) -> dict[str, float]:
        """Let robomimic run ``n`` iterations of a case, optionally on other demonstrations; return their cost."""
        assert self._process is not None and self._process.stdin is not None
        request = {"case": case, "n": n} | ({} if data is None else {"data": str(data)})
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            last = said[-1] if said else "it said nothing"
            raise RuntimeError(
                f"the peer {' '.join(map(str, self._process.args))} ended with exit code {code}: {last}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End robomimic's process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(timeout=60)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
