"""Test of every reader with damaged and foreign files.

    python -m tools.fuzz_readers                          each sample truncated 200 times, 200 bit flips, foreign files
    python -m tools.fuzz_readers --cases 20 aloha d4rl    fewer, and only these samples

A case runs in a forked process with a time limit. It must end with a dataset, or with a one-line
UserError and no files left. Otherwise the exit code is 1; ``--only 'flip 7'`` runs it again.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np

from imitate.data.formats import registry
from imitate.data.formats.convert import convert
from imitate.errors import UserError
from tests.data.formats import samples

LIMIT_S = 20
MAX_GROWTH, MAX_VIRTUAL = 512 * 2**20, 8 * 2**30
OUTCOMES = ("refused", "valid", "CRASHED", "HUNG", "LITTER", "MEMORY")


def converts(name):
    """Return a function that converts a file of the named or recognised format."""

    def run(path, out, named=True):
        given = {"from_format": name} if named else {}
        convert(path, out / "o.hdf5", replay=lambda source, *_: source.demos, **given)

    return run


def trains(path, out, named=True):
    from imitate.data import SequenceDataset, check_dataset  # imports torch

    check_dataset(path)
    dataset = SequenceDataset(path, ("object",), seq_length=3, load_next_obs=True)
    dataset.__getitems__(list(range(len(dataset))))


def diagnoses(path, out, named=True):
    from imitate.data.quality.doctor.diagnosis import diagnose

    diagnose(path)


def targets():
    """Return for each sample's name: its reader, the name of the file, the function that makes it."""
    found = {
        key: (converts(name), file, make) for key, (name, file, make) in samples.MAKERS.items()
    }
    found["SequenceDataset"] = (trains, "d.hdf5", samples.robomimic)
    found["doctor"] = (diagnoses, "d.hdf5", samples.with_jpegs)
    return found


# ---- damage --------------------------------------------------------------------------------------


def damage(path, kind, number, seed):
    """Truncate a file at a random position, or flip 1 to 64 of its bits; in a folder, change one of the files."""
    random = np.random.default_rng([seed, number, kind == "cut"])
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    file = files[random.integers(len(files))]
    content = bytearray(file.read_bytes())
    if kind == "cut":
        del content[int(random.integers(len(content))) :]
    else:
        for bit in random.integers(len(content) * 8, size=2 ** (number % 7)):
            content[bit // 8] ^= 1 << (bit % 8)
    file.write_bytes(content)


# ---- one case ------------------------------------------------------------------------------------


def attempt(run, path, folder, named):
    """Read a file in a separate process; return outcome, message, seconds and growth of memory in bytes."""
    out = folder / "out"
    out.mkdir()
    words = folder / "words"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _in_child(run, path, out, words, named)
    status = _wait(child)
    seconds = time.monotonic() - started
    said = words.read_text() if words.exists() else ""
    growth = folder / "growth"
    peak = int(growth.read_text()) if growth.exists() else 0
    if status is None:
        return "HUNG", said, seconds, peak
    outcome = {0: "valid", 2: "refused"}.get(os.waitstatus_to_exitcode(status), "CRASHED")
    if outcome == "CRASHED" and not said:
        said = f"exit status {os.waitstatus_to_exitcode(status)}"
    left = [item.name for item in out.iterdir()]
    if outcome == "refused" and left:
        outcome, said = "LITTER", f"left {left} after: {said}"
    if peak > MAX_GROWTH:
        outcome, said = "MEMORY", f"{peak / 2**20:.0f} MiB: {said}"
    return outcome, said, seconds, peak


def _in_child(run, path, out, words, named):
    before = _peak()
    limit = _virtual() + MAX_VIRTUAL
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    code = 0
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        run(path, out, named)
    except UserError as error:
        code = 2 if len(str(error).splitlines()) == 1 else 3
        words.write_text(str(error))
    except BaseException:
        code = 3
        words.write_text(traceback.format_exc())
    (words.parent / "growth").write_text(str(_peak() - before))
    os._exit(code)


def _virtual():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def _wait(child):
    """Return the exit status, or None if the process had to be killed."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.002)


# ---- all cases -----------------------------------------------------------------------------------


def cases(name, number_of, only):
    for number in range(number_of):
        for kind in ("cut", "flip"):
            label = f"{kind} {number}"
            if only in (None, label):
                yield label, kind, number


def examine(name, args, folder):
    """Run all cases of a sample; return counts and failures."""
    run, file, make = targets()[name]
    good = folder / "good"
    good.mkdir()
    counts, failures, slowest, peak, total = Counter(), [], 0.0, 0, 0

    def note(label, path, home, named):
        nonlocal slowest, peak, total
        outcome, said, seconds, growth = attempt(run, path, home, named)
        counts[outcome] += 1
        total += 1
        slowest, peak = max(slowest, seconds), max(peak, growth)
        if outcome not in ("refused", "valid"):
            words = said if args.only else said.strip().rpartition("\n")[2]
            failures.append(f"{name}, {label}: {outcome}: {words}")
        if args.verbose:
            _say(f"{name}, {label}: {outcome} {seconds:.2f} s {said}")
        return outcome

    _warm(run)
    outcome, said, *_ = attempt(lambda path, *_: make(path), good / file, folder, True)
    if outcome != "valid":
        raise RuntimeError(f"{name}: the sample cannot be made: {said}")
    home = folder / "whole"
    home.mkdir()
    if note("undamaged", good / file, home, named=True) != "valid":
        failures.append(f"{name}: the sample itself is not read")
    for label, kind, number in cases(name, args.cases, args.only):
        home = folder / "case"
        home.mkdir()
        copy = home / file
        (shutil.copytree if (good / file).is_dir() else shutil.copy)(good / file, copy)
        damage(copy, kind, number, args.seed)
        note(label, copy, home, named=number % 2 == 0)
        shutil.rmtree(home)
    if args.only is None:
        turn = list(targets()).index(name)
        others = np.roll(list(samples.foreign(folder / "foreign").items()), turn, axis=0)
        for label, path in others[: args.foreign]:
            home = folder / "case"
            home.mkdir()
            if note(label, path, home, named=True) == "valid" and name != "doctor":
                failures.append(f"{name}, {label}: accepted as a dataset")
            shutil.rmtree(home)
    row = {"sample": name, "cases": total, **{key: counts[key] for key in OUTCOMES}}
    return {**row, "slowest_s": round(slowest, 2), "peak_mib": round(peak / 2**20)}, failures


def _warm(run):
    """Import the modules of a case once; they are not used here, because libraries' threads do not survive a fork."""
    for module in ("av", "pyarrow.parquet", "zarr", "minari.dataset.minari_storage", "gymnasium"):
        import_module(module)
    for name in registry.names():
        registry.find(name)
    if run is trains:
        import_module("imitate.data.batches.sequence_dataset")
    if run is diagnoses:
        import_module("imitate.data.quality.doctor.diagnosis")


def _say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser("python -m tools.fuzz_readers", description=__doc__)
    parser.add_argument("samples", nargs="*", help="names of samples; all by default")
    parser.add_argument(
        "--cases", type=int, default=200, help="number of cases of each kind of damage"
    )
    parser.add_argument(
        "--foreign", type=int, default=99, help="number of foreign files per sample"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="run one case, such as 'flip 17'")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--verbose", action="store_true", help="print each case")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, failures = [], []
    for name in args.samples or targets():
        with tempfile.TemporaryDirectory() as folder:
            row, found = examine(name, args, Path(folder))
        rows.append(row)
        failures += found
        if not args.json:
            if len(rows) == 1:
                _say(" | ".join(row))
            _say(" | ".join(str(value) for value in row.values()))
    if args.json:
        _say(json.dumps({"rows": rows, "failures": failures}))
    else:
        _say("\n".join(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
