"""Test of kills at random times: no data may be lost, repeated or incomplete, and the result must stay the same.

    python -m benchmarks.kills --on local --num 100 --seed 0 --out kills
    python -m benchmarks.kills --on ray --num 25 --seed 2 --out kills_ray

Each kill starts a small job (collect, render, eval, a sweep, online training, training on
cached features), sends SIGKILL at a random time to
its main process or to one of its other processes (on Ray, one of the workers), checks that the others end, and resumes.
Afterwards every HDF5 and JSON file has to open, nothing may be left unfinished or running, and the result has to equal
the undisturbed one. An interrupted test is continued by the same call. OUT/kills.jsonl has a line for each kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py

from benchmarks.kill_jobs import Job, jobs, write_inputs

MARK = "IMITATE_KILLS"
ENDS_S = 60.0
"""Seconds within which all processes of a killed command must end; a training may take up to 30 to save."""
LONGEST_S = 900.0


@dataclass
class Kill:
    """A kill and its consequences.

    Attributes:
        number: number of the kill, which with the seed determines job, time and victim.
        job: name of the job's command.
        victim: ``main`` or ``other``.
        after_s: seconds from the start to the kill.
        command: command line of the victim.
        gone_s: seconds from the kill of the main process until all its processes had ended.
        exit_codes: exit code of the command and, if it was interrupted, of the resumed one; a signal is negative.
        whole_s: seconds from the beginning to the end of the resumed command.
        findings: descriptions of what went wrong; empty if nothing did.
    """

    number: int
    job: str
    victim: str
    after_s: float
    command: str = ""
    gone_s: float | None = None
    exit_codes: list[int] = field(default_factory=list)
    whole_s: float = 0.0
    findings: list[str] = field(default_factory=list)


class Killer:
    """Test that starts jobs, kills them and resumes them.

    Args:
        folder: folder of the inputs, the undisturbed results and the report.
        on: place of the workers.
        seed: seed of the times and victims.
    """

    def __init__(self, folder: Path, on: str, seed: int) -> None:
        self._folder, self._on, self._seed = folder.resolve(), on, seed
        self.jobs = jobs(self._folder / "inputs")
        self._references: dict[str, Any] = {}

    def prepare(self, names: Sequence[str]) -> None:
        """Run each job undisturbed, and the jobs whose results it needs; existing results are kept."""
        inputs = self._folder / "inputs"
        if not (inputs / "sweep.json").is_file():
            write_inputs(inputs)
        needed = {"eval": "online", "render": "collect"}
        for name in dict.fromkeys([*(needed.get(n, n) for n in names), *names]):
            job, place = self.jobs[name], inputs / name
            if not (place / "took.json").is_file():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                began = time.monotonic()
                code = self._start(job, job.begin(place), place, "undisturbed").wait(LONGEST_S)
                if code:
                    raise SystemExit(f"{name}: failed without a kill, see {place / 'output.txt'}")
                (place / "took.json").write_text(json.dumps(time.monotonic() - began))
            took = json.loads((place / "took.json").read_text())
            self._references[name] = (took, job.result(place))

    def kill(self, number: int, names: Sequence[str]) -> Kill:
        """Start a job, kill it once, resume it and return what happened."""
        rng = random.Random(f"{self._seed} {number}")
        job = self.jobs[rng.choice(list(names))]
        took, reference = self._references[job.name]
        done = Kill(number, job.name, rng.choice(("main", "other")), rng.uniform(0.1, 0.95) * took)
        place = self._folder / f"kill_{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        mark, began = f"{os.getpid()}-{number}", time.monotonic()
        process = self._start(job, job.begin(place), place, mark)
        try:
            process.wait(done.after_s)
        except subprocess.TimeoutExpired:
            pass
        else:  # the job ended before the kill: the machine is less busy, so kill earlier
            self._references[job.name] = (time.monotonic() - began, reference)
            return self.kill(number, names)
        self._strike(done, process, mark, rng)
        finished = self._ended(done, process, mark)
        done.findings += broken_files(place)
        if not (finished or job.is_done(place)):
            again = self._start(job, job.resume(place), place, mark)
            done.exit_codes.append(_waited(again))
        done.whole_s = time.monotonic() - began
        done.findings += self._checked(done, job, place, mark, reference)
        if not done.findings:
            shutil.rmtree(place)
        return done

    def _start(self, job: Job, words: list[str], place: Path, mark: str) -> subprocess.Popen[bytes]:
        if self._on != "local" and job.goes_on_ray:
            words = [*words, "--on", self._on]
        environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
        environment["IMITATE_CACHE"] = str(place / "cache")
        with (place / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "imitate", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def _strike(
        self, done: Kill, process: subprocess.Popen[bytes], mark: str, rng: random.Random
    ) -> None:
        """Kill the victim; if there is only the main process, kill that."""
        others = [pid for pid in marked(mark) if pid != process.pid and not _is_of_ray(pid)]
        if done.victim == "other" and others:
            victim = rng.choice(others)
        else:
            victim, done.victim = process.pid, "main"
        done.command = _command(victim)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def _ended(self, done: Kill, process: subprocess.Popen[bytes], mark: str) -> bool:
        """Wait until all processes have ended; return true if the command finished in spite of the kill."""
        killed = time.monotonic()
        code = _waited(process)
        done.exit_codes.append(code)
        while (left := marked(mark)) and time.monotonic() < killed + (
            ENDS_S if code else LONGEST_S
        ):
            time.sleep(0.1)
        done.gone_s = time.monotonic() - killed if done.victim == "main" else None
        done.findings += _cleared(left, "after the kill")
        return code == 0

    def _checked(self, done: Kill, job: Job, place: Path, mark: str, reference: Any) -> list[str]:
        """Return descriptions of what the resumed command did wrong."""
        if done.exit_codes[-1] and not job.is_done(place):
            return [f"exit code {done.exit_codes[-1]}, see {place / 'output.txt'}"]
        deadline = time.monotonic() + 15.0
        while (left := marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        findings = _cleared(left, "at the end") + broken_files(place)
        findings += [f"left behind: {path.name}" for path in place.rglob("*partial*")]
        if not job.is_alike(job.result(place), reference):
            findings.append(f"the result differs from that without a kill, see {place}")
        return findings


def marked(mark: str) -> list[int]:
    """Return the processes whose environment variables contain a mark."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def broken_files(place: Path) -> list[str]:
    """Return descriptions of the finished files that cannot be opened."""
    return [words for path in place.rglob("*") if (words := _broken(path))]


def _broken(path: Path) -> str | None:
    try:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".hdf5":
            h5py.File(path).close()
    except (OSError, ValueError) as error:
        return f"{path.name}: incomplete ({error})"
    return None


def _cleared(pids: list[int], when: str) -> list[str]:
    """Kill processes that should have ended; return them as findings."""
    findings = [f"process left {when}: {_command(pid)}" for pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return findings


def _is_of_ray(pid: int) -> bool:
    """Return true for a process of Ray itself; a cluster of one machine has ended when all of them have."""
    command = _command(pid)
    return "/ray/" in command or ("ray::" in command and "Host" not in command)


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:160]
    return "(gone)"


def _waited(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def summary(kills: Sequence[Kill]) -> list[str]:
    """Return a Markdown table with a line per job."""
    lines = [
        "| job | kills | main / other | longest until all had ended, s | promises broken |",
        "|---|---|---|---|---|",
    ]
    names = sorted({kill.job for kill in kills})
    for name in [*names, "all"]:
        these = [kill for kill in kills if name in (kill.job, "all")]
        victims = Counter(kill.victim for kill in these)
        gone = [kill.gone_s for kill in these if kill.gone_s is not None]
        broken = sum(bool(kill.findings) for kill in these)
        longest = f"{max(gone):.1f}" if gone else "-"
        lines.append(
            f"| {name} | {len(these)} | {victims['main']} / {victims['other']} | {longest} | {broken} |"
        )
    return lines


def main() -> int:
    """Do the remaining kills; return 1 if something went wrong after one of them."""
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    report = args.out / "kills.jsonl"
    kills = (
        [Kill(**json.loads(line)) for line in report.read_text().splitlines()]
        if report.is_file()
        else []
    )
    killer = Killer(args.out, args.on, args.seed)
    is_local = args.on == "local"
    names = [name for name, job in killer.jobs.items() if is_local or job.goes_on_ray]
    names = args.only or names
    killer.prepare(names)
    for number in sorted(set(range(args.num)) - {kill.number for kill in kills}):
        kills.append(killer.kill(number, names))
        with report.open("a") as file:
            file.write(json.dumps(asdict(kills[-1])) + "\n")
        print(_line(kills[-1]), flush=True)
    print("\n".join(["", *summary(kills)]))
    whole = {"on": args.on, "seed": args.seed, "kills": [asdict(kill) for kill in kills]}
    (args.out / "kills.json").write_text(json.dumps(whole, indent=1) + "\n")
    return 1 if any(kill.findings for kill in kills) else 0


def _line(kill: Kill) -> str:
    words = "; ".join(kill.findings) or "ok"
    gone = "" if kill.gone_s is None else f", all gone after {kill.gone_s:.1f} s"
    return f"{kill.number} {kill.job}: {kill.victim} after {kill.after_s:.1f} s{gone}, {kill.whole_s:.0f} s: {words}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--on", default="local", help="local, ray or ray:HOST:PORT")
    parser.add_argument("--num", type=int, default=100, help="total number of kills")
    parser.add_argument("--seed", type=int, default=0, help="seed of jobs, times and victims")
    parser.add_argument(
        "--only", nargs="*", choices=list(jobs(Path())), help="names of jobs; all by default"
    )
    parser.add_argument("--out", type=Path, default=Path("kills"), help="folder of the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
