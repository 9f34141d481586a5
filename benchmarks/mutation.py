"""Mutation testing: small faults are put into modules, and each module's own tests must notice.

    python -m benchmarks.mutation                                      all listed modules, each mutant
    python -m benchmarks.mutation --modules functional algo.sac        these, by the beginning of their names
    python -m benchmarks.mutation --sample 100 --seed 3                mutants drawn at random
    python -m benchmarks.mutation --json out.json                      keep the figures
    python -m benchmarks.mutation --again out.json --json out.json     only what survived, after tests were added

Nothing on the disk is changed: a fault is put into the code of a forked process, which then runs those tests of the
module's own files that execute the changed lines, the fastest first, until one fails. Mutants that no test can notice,
because they do the same, are listed with a reason in ``equivalent_mutants.json`` and do not count. ``--again`` counts
what the earlier run killed as killed, and tries a module that has changed since in full. Exit code 1 if less than
``--at-least`` percent of a group were killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "functional": {
        f"functional.{path.stem}": (f"tests/functional/test_{path.stem}.py",)
        for path in sorted((ROOT / "imitate/functional").glob("*.py"))
        if path.stem != "__init__"
    },
    "data": {"data.batches.windows": ("tests/data/batches/test_windows.py",)},
    "models": {"models.preprocess": ("tests/models/test_preprocess.py",)},
    "online": {"online.ring": ("tests/online/test_ring.py", "tests/online/test_replay.py")},
    "algo": {
        "algo.iql": ("tests/algo/test_iql.py",),
        "algo.sac": tuple(f"tests/algo/test_sac{kind}.py" for kind in ("", "_discrete", "_mixed")),
        "algo.flow_policy": ("tests/algo/test_flow_policy.py",),
    },
}
"""Modules by group, with their own test files."""


@dataclass
class Verdict:
    """How a mutant ended: 'killed', 'timeout' (counts as killed), 'survived', 'equivalent'."""

    group: str
    module: str
    name: str
    line: int
    status: str
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Module:
    """A module under test and what its tests execute.

    Attributes:
        durations: seconds of each test, by its name.
        lines: lines of the module that each test executes.
        shared: lines executed by fixtures of several tests.
    """

    group: str
    name: str
    tests: tuple[str, ...]
    durations: dict[str, float] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)

    @property
    def path(self) -> Path:
        """The source file."""
        return ROOT / "imitate" / (self.name.replace(".", "/") + ".py")

    @property
    def digest(self) -> str:
        """Another one for each version of the source."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def learn(self, found: dict[str, Any]) -> None:
        """Take what a measurement found."""
        self.durations = found["durations"]
        self.lines = {name: set(numbers) for name, numbers in found["lines"].items()}
        self.shared = set(found["shared"])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that execute the changed lines, the fastest first."""
        changed = set(range(mutant.lines[0], mutant.lines[1] + 1))
        everything = bool(changed & self.shared) or not mutant.function
        found = [name for name, lines in self.lines.items() if everything or changed & lines]
        return sorted(found, key=lambda name: self.durations[name])


def main() -> int:
    """The command."""
    args = _arguments()
    modules = list(_modules(args.modules))
    _import_packages()
    known = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else {}
    verdicts: list[Verdict] = []
    if args.again:
        earlier = json.loads(args.again.read_text())
        modules = [module for module in modules if module.name in earlier["modules"]]
    else:
        earlier = {"sources": {}}
    for module in modules:
        unchanged = earlier.get("sources", {}).get(module.name) == module.digest
        verdicts += killed_before(module, earlier) if unchanged else []
        chosen = list(_chosen(module, earlier if unchanged else None, args.sample, args.seed))
        if chosen:
            verdicts += _try(module, chosen, known.get(module.name, {}), args.workers)
        for name in _outdated(module, known.get(module.name, {})):
            print(
                f"{module.name}: listed as equivalent, but no such mutant is there any more: {name}"
            )
        if args.json:
            args.json.write_text(json.dumps(report(verdicts, modules), indent=2) + "\n")
        _print_module(module, verdicts)
    rates = report(verdicts)["groups"]
    for group, entry in rates.items():
        print(
            f"{group:<12} {entry['killed']:>5} of {entry['mutants']:>5} killed, {entry['percent']:.1f} %"
        )
    return int(any(entry["percent"] < args.at_least for entry in rates.values()))


def report(verdicts: Sequence[Verdict], modules: Sequence[Module] = ()) -> dict[str, Any]:
    """Counts and percentages by group and module, every mutant that was not killed, and the versions of the sources."""
    measured = _in_order(verdicts, "module")
    return {
        "sources": {module.name: module.digest for module in modules if module.name in measured},
        "groups": {group: _counts(verdicts, group=group) for group in _in_order(verdicts, "group")},
        "modules": {name: _counts(verdicts, module=name) for name in measured},
        "survivors": [asdict(v) for v in verdicts if v.status == "survived"],
        "equivalent": [asdict(v) for v in verdicts if v.status == "equivalent"],
    }


def killed_before(module: Module, earlier: dict[str, Any]) -> list[Verdict]:
    """What an earlier run killed of a module, without names."""
    count: int = earlier["modules"][module.name]["killed"]
    return [Verdict(module.group, module.name, "", 0, "killed")] * count


def _in_order(verdicts: Sequence[Verdict], attribute: str) -> list[str]:
    return list(dict.fromkeys(getattr(verdict, attribute) for verdict in verdicts))


def _counts(verdicts: Sequence[Verdict], **chosen: str) -> dict[str, Any]:
    ((attribute, value),) = chosen.items()
    own = [v for v in verdicts if getattr(v, attribute) == value and v.status != "equivalent"]
    killed = sum(verdict.status in ("killed", "timeout") for verdict in own)
    return {
        "mutants": len(own),
        "killed": killed,
        "percent": round(100.0 * killed / len(own), 1) if own else 100.0,
        "seconds": round(sum(verdict.seconds for verdict in own), 1),
    }


def _print_module(module: Module, verdicts: Sequence[Verdict]) -> None:
    counts = _counts(verdicts, module=module.name)
    print(
        f"{module.name}: {counts['killed']} of {counts['mutants']} ({counts['percent']} %)",
        flush=True,
    )
    for verdict in verdicts:
        if verdict.module == module.name and verdict.status == "survived":
            print(f"  survived, line {verdict.line}: {verdict.name}", flush=True)


def _modules(wanted: Sequence[str]) -> Iterator[Module]:
    found = False
    for group, modules in GROUPS.items():
        for name, tests in modules.items():
            if not wanted or any(name.startswith(word.removeprefix("imitate.")) for word in wanted):
                found = True
                yield Module(group, name, tuple(t for t in tests if (ROOT / t).is_file()))
    if not found:
        names = [name for modules in GROUPS.values() for name in modules]
        raise SystemExit(f"no such module; known are {', '.join(names)}")


def _chosen(
    module: Module, earlier: dict[str, Any] | None, sample: int | None, seed: int
) -> Iterator[Mutant]:
    """Mutants to try, of an ``earlier`` run those that survived."""
    made = mutants(module.path.read_text(encoding="utf-8"))
    if earlier is not None:
        left = {(entry["module"], entry["name"]) for entry in earlier["survivors"]}
        made = [mutant for mutant in made if (module.name, mutant.name) in left]
    if sample is not None and sample < len(made):
        kept = set(random.Random(f"{seed} {module.name}").sample(range(len(made)), sample))
        made = [mutant for number, mutant in enumerate(made) if number in kept]
    yield from made


def _outdated(module: Module, equivalent: dict[str, str]) -> list[str]:
    made = {mutant.name for mutant in mutants(module.path.read_text(encoding="utf-8"))}
    return [name for name in equivalent if name not in made]


# ---- running ---------------------------------------------------------------------------------------


def _import_packages() -> None:
    """What every child would import again."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    import gymnasium  # noqa: F401
    import h5py  # noqa: F401
    import hypothesis  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    if any(name.split(".")[0] == "imitate" for name in sys.modules):
        raise RuntimeError("imitate is imported already, so no mutant can take a module's place")


def _try(
    module: Module, chosen: Sequence[Mutant], equivalent: dict[str, str], workers: int
) -> list[Verdict]:
    """Verdicts in the order of the mutants. Survivors of the warm way get a second, cold trial."""
    from benchmarks.mutation_child import collected, measure, warm

    if not module.tests:
        raise SystemExit(f"{module.name}: has no test file of its own")
    verdicts = {
        mutant.name: Verdict(module.group, module.name, mutant.name, mutant.lines[0], "")
        for mutant in chosen
    }
    for name in equivalent.keys() & verdicts.keys():
        verdicts[name].status, verdicts[name].reason = "equivalent", equivalent[name]
    open_ones = [mutant for mutant in chosen if not verdicts[mutant.name].status]

    def in_functions(session: Any) -> Any:
        module.learn(measure(session, module.path))

        def start(mutant: Mutant, tests: list[str], limit_s: float) -> Any:
            return warm(session, tests, f"imitate.{module.name}", mutant, limit_s)

        quick = [mutant for mutant in open_ones if mutant.function]
        return [_run(module, quick, start, workers), module.durations]

    found, module.durations = collected(module.tests, in_functions)
    for name, (status, seconds) in found.items():
        verdicts[name].status, verdicts[name].seconds = status, seconds
    left = [m for m in open_ones if verdicts[m.name].status not in ("killed", "timeout")]
    for name, (status, seconds) in _cold_run(module, left, workers).items():
        verdicts[name].status, verdicts[name].seconds = status, seconds
    return list(verdicts.values())


def _cold_run(module: Module, left: Sequence[Mutant], workers: int) -> dict[str, tuple[str, float]]:
    from benchmarks.mutation_child import cold

    module.lines = {name: set() for name in module.durations}
    everything = [replace(mutant, function=()) for mutant in left]

    def start(mutant: Mutant, tests: list[str], limit_s: float) -> Any:
        return cold(module.tests, tests, f"imitate.{module.name}", mutant, limit_s)

    return _run(module, everything, start, workers)


def _run(
    module: Module,
    chosen: Sequence[Mutant],
    start: Callable[[Mutant, list[str], float], Any],
    workers: int,
) -> dict[str, tuple[str, float]]:
    """Status and seconds by name; of mutants that could not be started nothing."""
    waiting, running, found = list(reversed(chosen)), {}, {}
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            tests = module.tests_of(mutant)
            limit_s = 20.0 + 10.0 * sum(module.durations[test] for test in tests)
            child = start(mutant, tests, limit_s) if tests else None
            if child is not None:
                running[mutant.name] = child
        time.sleep(0.005)
        for name, child in list(running.items()):
            status = child.poll()
            if status is not None:
                found[name] = (status, child.seconds)
                del running[name]
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--modules", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--sample", type=int, help="so many mutants per module, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time")
    parser.add_argument("--again", type=Path, help="only the survivors in an earlier --json")
    parser.add_argument(
        "--at-least", type=float, default=95.0, help="percent per group; else exit code 1"
    )
    parser.add_argument("--json", type=Path, help="report to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
