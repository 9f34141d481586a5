"""Measurements of robomimic and Stable-Baselines3, in processes of other interpreters, or from recorded figures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import Contestant, Spent

RECORDED = Path(__file__).with_name("peer_recorded.json")


class PeerProcess:
    """Process of another interpreter that answers requests, a line of JSON each; a context manager.

    Args:
        python: the interpreter.
        words: script beside this module, and its arguments.
        environ: additional environment variables.
    """

    def __init__(self, python: Path, *words: object, **environ: str) -> None:
        script, *rest = map(str, words)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the peer writes to it)
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name(script)), *rest],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        )
        self.hello = self._read()

    def measure(self, case: str, n: int, **more: str) -> dict[str, float]:
        """Let the process run ``n`` iterations of a case, and return their cost."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "n": n, **more}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def contestant(self, case: str, **more: str) -> Contestant:
        """Return a contestant that runs one of the cases of this process."""
        return lambda n: Spent(**self.measure(case, n, **more))

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            last = said[-1] if said else "without a message"
            command = " ".join(map(str, self._process.args))
            raise RuntimeError(f"the peer {command} ended with exit code {code}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def stable_baselines(python: Path, device: str = "cpu") -> PeerProcess:
    """Start the cases of peer_sb3.py; the interpreter has stable-baselines3."""
    return PeerProcess(python, "peer_sb3.py", device)


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
        self._process: PeerProcess | None = None
        self._cases: list[str] = []
        if python is None:
            return
        environ = {} if source is None else {"PYTHONPATH": str(source)}
        self._process = PeerProcess(python, "peer_robomimic.py", data, device, **environ)
        hello = self._process.hello
        self._cases = hello["cases"]
        self.words = f"robomimic {hello['robomimic']} with torch {hello['torch']}, same run"

    @property
    def live(self) -> bool:
        """True if robomimic is run, false if its figures are recorded ones."""
        return self._process is not None

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
        assert self._process is not None
        return self._process.measure(case, n, **({} if data is None else {"data": str(data)}))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.__exit__(*error)


@dataclass(frozen=True)
class Bench:
    """Data, peer and folder of a benchmark's run.

    Args:
        data: demonstrations to measure on.
        peer: measurements of robomimic.
        folder: folder for files that are removed when the run ends.
    """

    data: Path
    peer: Peer
    folder: Path
