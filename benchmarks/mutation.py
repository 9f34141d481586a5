"""Mutation testing: small faults are put into modules, and the tests that execute the changed lines must notice.

    python -m benchmarks.mutation --record                             the core modules; first the map of their tests
    python -m benchmarks.mutation --modules functional algo.sac        modules by prefix
    python -m benchmarks.mutation --draw 10 --seed 3 --record          modules drawn at random from six rooms
    python -m benchmarks.mutation --sample 100 --seed 3                100 random mutants per module
    python -m benchmarks.mutation --modules algo.fql --signs           only flipped signs
    python -m benchmarks.mutation --json out.json                      keep the figures
    python -m benchmarks.mutation --again out.json --json out.json     only the survivors, after tests were added
    python -m benchmarks.mutation --same out.json                      the same mutants: killed ones must not survive
    python -m benchmarks.mutation --record tests/data tests/deploy     only add these tests to the map

Source files are not changed: a fault is put into the code of a forked process, which then runs the tests that
execute the changed lines according to the map (``benchmarks.mutation_map``), those near the module and the fastest
first, until one fails; that test must pass without the fault. Processes that tests start have the fault, too. Without
a path ``--record`` adds the files of tests that name the modules, or else those of their packages. Mutants that no
test can notice, because they do the same, are listed with a reason in ``equivalent_mutants.json`` and do not count.
``--again`` keeps the kills of the earlier run, and tries all mutants of modules that have changed since. The exit
code is 1 if less than ``--at-least`` percent of a group were killed, or with ``--same`` if a mutant survives that was
killed before.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import mutation_map
from benchmarks.mutants import Mutant, called_at_import, mutants

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
CORE = (
    *("functional.", "data.batches.windows", "models.preprocess", "train.online.ring"),
    *("algo.iql", "algo.sac", "algo.flow_policy"),
)
"""Modules that are tried if none are named; a name that ends with a dot is a package."""
ROOMS = ("data", "train", "deploy", "evaluate", "policy", "envs")
"""Packages from which ``--draw`` draws modules."""
DRAWN_MUTANTS = 8
"""Smallest number of mutants of a drawn module."""


@dataclass
class Verdict:
    """Result of a mutant: 'killed', 'timeout' (counts as killed), 'survived', 'equivalent'."""

    group: str
    module: str
    name: str
    line: int
    status: str
    seconds: float = 0.0
    reason: str = ""
    killer: str = ""


@dataclass
class Module:
    """A module under test, by its name without ``imitate.``, and its package."""

    name: str

    @property
    def group(self) -> str:
        """Name of the room."""
        return self.name.partition(".")[0]

    @property
    def source(self) -> str:
        """Path of the source file, from the root of the repository."""
        return f"imitate/{self.name.replace('.', '/')}.py"

    @property
    def digest(self) -> str:
        """Digest of the source, which differs for each version."""
        return mutation_map.digest(ROOT / self.source)

    def mutants(self) -> list[Mutant]:
        """Return all mutants."""
        return mutants((ROOT / self.source).read_text(encoding="utf-8"))


def main() -> int:
    """Run the command."""
    args = _arguments()
    modules = draw(args.draw, args.seed) if args.draw else _modules(args.modules or CORE)
    if args.record is not None:
        _record(args.record, modules, args.map)
        if args.record:
            return 0
    earlier = json.loads((args.again or args.same).read_text()) if args.again or args.same else {}
    if earlier:
        modules = [module for module in modules if module.name in earlier["modules"]]
    known = json.loads(EQUIVALENT.read_text())
    verdicts: list[Verdict] = []
    for module in modules:
        equivalent = known.get(module.name, {})
        if args.again and earlier["sources"].get(module.name) == module.digest:
            verdicts += _as_before(module, earlier, "killed", "timeout")
            made = _named(module, _as_before(module, earlier, "survived"))
        elif args.same:
            made = _named(module, _as_before(module, earlier, "killed", "timeout", "survived"))
        else:
            made = [x for x in module.mutants() if x.is_flipped_sign or not args.signs]
            made = _sample(made, args.sample, f"{args.seed} {module.name}")
        verdicts += _try(module, made, equivalent, args) if made else []
        for name in equivalent.keys() - {mutant.name for mutant in module.mutants()}:
            print(f"{module.name}: a mutant listed as equivalent does not exist: {name}")
        if args.json:
            args.json.write_text(json.dumps(report(verdicts, modules), indent=2) + "\n")
        _print_module(module, verdicts)
    return _conclude(verdicts, earlier if args.same else {}, args.at_least)


def _conclude(verdicts: Sequence[Verdict], same: dict[str, Any], at_least: float) -> int:
    rates = report(verdicts)["groups"]
    for group, entry in rates.items():
        killed = f"{entry['killed']:>5} of {entry['mutants']:>5} killed"
        print(f"{group:<12} {killed}, {entry['percent']:.1f} %")
    if not same:
        return int(any(entry["percent"] < at_least for entry in rates.values()))
    gone = sum(entry["status"] != "equivalent" for entry in same["mutants"]) - len(verdicts)
    print(f"{gone} mutants of the earlier run do not exist any more, or belong to other modules")
    lost = newly_alive(same, verdicts)
    for verdict in lost:
        print(
            f"was killed before and survives now: {verdict.module}, line {verdict.line}: {verdict.name}"
        )
    return int(bool(lost))


def report(verdicts: Sequence[Verdict], modules: Sequence[Module] = ()) -> dict[str, Any]:
    """Return counts and percentages by group and module, every mutant, and the versions of the sources."""
    measured = _in_order(verdicts, "module")
    return {
        "sources": {module.name: module.digest for module in modules if module.name in measured},
        "groups": {group: _counts(verdicts, group=group) for group in _in_order(verdicts, "group")},
        "modules": {name: _counts(verdicts, module=name) for name in measured},
        "mutants": [asdict(verdict) for verdict in verdicts],
    }


def newly_alive(earlier: dict[str, Any], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return mutants that survive now but were killed in an earlier run."""
    died = {
        (entry["module"], entry["name"])
        for entry in earlier["mutants"]
        if entry["status"] in ("killed", "timeout")
    }
    return [v for v in verdicts if v.status == "survived" and (v.module, v.name) in died]


def draw(count: int, seed: int) -> list[Module]:
    """Draw modules of ROOMS at random from those that have enough mutants."""
    found = sorted(
        str(path.relative_to(ROOT / "imitate").with_suffix("")).replace(os.sep, ".")
        for room in ROOMS
        for path in (ROOT / "imitate" / room).rglob("*.py")
        if path.stem != "__init__"
    )
    random.Random(seed).shuffle(found)
    enough = (m for m in map(Module, found) if len(m.mutants()) >= DRAWN_MUTANTS)
    return list(islice(enough, count))


def _as_before(module: Module, earlier: dict[str, Any], *statuses: str) -> list[Verdict]:
    entries = (entry for entry in earlier["mutants"] if entry["module"] == module.name)
    return [Verdict(**entry) for entry in entries if entry["status"] in statuses]


def _named(module: Module, verdicts: Sequence[Verdict]) -> list[Mutant]:
    wanted = {verdict.name for verdict in verdicts}
    return [mutant for mutant in module.mutants() if mutant.name in wanted]


def _sample(made: list[Mutant], count: int | None, seed: str) -> list[Mutant]:
    if count is None or count >= len(made):
        return made
    kept = set(random.Random(seed).sample(range(len(made)), count))
    return [mutant for number, mutant in enumerate(made) if number in kept]


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
    own = [verdict for verdict in verdicts if verdict.module == module.name]
    counts = _counts(own, module=module.name)
    rate = f"{counts['killed']} of {counts['mutants']} ({counts['percent']} %)"
    print(f"{module.name}: {rate}", flush=True)
    for verdict in own:
        if verdict.status == "survived":
            why = f" ({verdict.reason})" if verdict.reason else ""
            print(f"  survived, line {verdict.line}: {verdict.name}{why}", flush=True)


def _modules(wanted: Sequence[str]) -> list[Module]:
    """Return the modules whose names begin with these texts, whole names first."""
    names = sorted(
        str(path.relative_to(ROOT / "imitate").with_suffix("")).replace(os.sep, ".")
        for path in (ROOT / "imitate").rglob("*.py")
        if path.stem != "__init__"
    )
    found: dict[str, None] = {}
    for word in wanted:
        word = word.removeprefix("imitate.")
        own = [word] if word in names else [name for name in names if name.startswith(word)]
        if not own:
            close = ", ".join(get_close_matches(word, names, 3)) or ", ".join(CORE)
            raise SystemExit(f"no such module '{word}'; known are {close}")
        found |= dict.fromkeys(own)
    return [Module(name) for name in found]


def files_of(module: Module, files: Sequence[str]) -> list[str]:
    """Return the test files that name a module; if none does, those of its package."""
    folder = module.source.rpartition("/")[0].replace("imitate", "tests", 1)
    found = [file for file in files if mutation_map.names(ROOT / file, module.source)]
    return found or [file for file in files if file.startswith(f"{folder}/")]


def _record(paths: Sequence[str], modules: Sequence[Module], folder: Path) -> None:
    """Add test files to the map: the given ones, or those of the modules."""
    files = mutation_map.test_files(paths or ["tests"])
    if not paths:
        files = sorted({file for module in modules for file in files_of(module, files)})
    _import_packages()
    mutation_map.record(files, folder)


# ---- running ---------------------------------------------------------------------------------------


def _import_packages() -> None:
    """Import the packages that every child would import again."""
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
        raise RuntimeError("imitate is imported already, so no mutant can replace a module")


class _Trial:
    """Trial of one module's mutants: first in loaded functions, then by a fresh import for those that survive.

    Args:
        module: the module.
        args: arguments of the command line.
    """

    def __init__(self, module: Module, args: argparse.Namespace) -> None:
        self._name, self._args = f"imitate.{module.name}", args
        self._reach = mutation_map.reach(module.source, args.map)
        self._healthy: dict[str, bool] = {}

    def tests_of(self, mutant: Mutant, everything: bool = False) -> list[str]:
        """Return the tests that execute the changed lines, or else the function around them, or else the module."""
        lines = [mutant.lines, mutant.around] if mutant.function and not everything else []
        for first, last in lines:
            if found := self._tests(((1 << last - first + 1) - 1) << first):
                return found
        return self._tests(0)

    def _tests(self, changed: int) -> list[str]:
        found = self._reach.tests(changed, self._args.test_s, self._args.budget_s)
        return [test for test in found if self._healthy.get(test, True)]

    def warm(self, chosen: Sequence[Mutant]) -> dict[str, tuple[str, float, str]]:
        """Return status, seconds and failed test, by name, of mutants whose code fits into the loaded function."""
        from benchmarks import mutation_child as child

        files = _files(test for mutant in chosen for test in self.tests_of(mutant))
        if not files:
            return {}

        def work(session: Any) -> Any:
            def start(mutant: Mutant, tests: list[str]) -> Any:
                return child.warm(session, tests, self._name, mutant, self._limit_s(tests))

            found = self._run(chosen, start, lambda test: child.as_it_is(session, test))
            return [found, self._healthy]

        found, self._healthy = child.collected(files, work)
        return {name: tuple(verdict) for name, verdict in found.items()}

    def cold(self, chosen: Sequence[Mutant]) -> dict[str, tuple[str, float, str]]:
        """Return status, seconds and failed test of each mutant, by the mutant's name."""
        from benchmarks import mutation_child as child

        def start(mutant: Mutant, tests: list[str]) -> Any:
            tests = list(dict.fromkeys([*tests, *self.tests_of(mutant, everything=True)]))
            tests.sort(key=_file)
            return child.cold(_files(tests), tests, self._name, mutant, self._limit_s(tests))

        def alone(test: str) -> Any:
            return child.cold(_files([test]), [test], self._name, None, child.WALL_S)

        return self._run(chosen, start, alone)

    def _limit_s(self, tests: Sequence[str]) -> float:
        return 20.0 + 10.0 * sum(self._reach.seconds[test] for test in tests)

    def _run(
        self,
        chosen: Sequence[Mutant],
        start: Callable[[Mutant, list[str]], Any],
        alone: Callable[[str], Any],
    ) -> dict[str, tuple[str, float, str]]:
        waiting, running, found = list(reversed(chosen)), {}, {}
        while waiting or running:
            while waiting and len(running) < self._args.workers:
                mutant = waiting.pop()
                tests = self.tests_of(mutant)
                child = start(mutant, tests) if tests else None
                if child is not None:
                    running[mutant.name] = (mutant, child)
            time.sleep(0.005)
            for name, (mutant, child) in list(running.items()):
                status = child.poll()
                if status is None:
                    continue
                del running[name]
                if status == "survived" or self._is_healthy(child.killer, alone):
                    found[name] = (status, round(child.seconds, 2), child.killer)
                else:
                    waiting.append(mutant)
        return found

    def _is_healthy(self, test: str, alone: Callable[[str], Any]) -> bool:
        """Return true if a test passes without a mutant; each test is run once."""
        if test and test not in self._healthy:
            self._healthy[test] = alone(test).wait() == "survived"
            if not self._healthy[test]:
                print(f"  fails without a mutant, so it does not count: {test}", flush=True)
        return not test or self._healthy[test]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _files(tests: Iterable[str]) -> list[str]:
    return sorted({_file(test) for test in tests})


def _try(
    module: Module,
    chosen: Sequence[Mutant],
    equivalent: dict[str, str],
    args: argparse.Namespace,
) -> list[Verdict]:
    """Return verdicts in the order of the mutants, after a warm trial of those in functions, or else a cold one.

    A survivor of the warm trial gets a cold one only if an import may call its function: a cold trial imports the
    package and collects the tests again, and finds nothing in a function that only tests call.
    """
    verdicts = {
        mutant.name: Verdict(module.group, module.name, mutant.name, mutant.lines[0], "")
        for mutant in chosen
    }
    for name in equivalent.keys() & verdicts.keys():
        verdicts[name].status, verdicts[name].reason = "equivalent", equivalent[name]
    _import_packages()
    trial = _Trial(module, args)
    left = [mutant for mutant in chosen if not verdicts[mutant.name].status]
    if not any(trial.tests_of(mutant) for mutant in left):
        print(f"{module.name}: the map has no test that executes it; use --record")
    at_import = _called_at_import()
    for way in (trial.warm, trial.cold):
        here = [m for m in left if m.function] if way == trial.warm else left
        for name, (status, seconds, killer) in way(here).items():
            verdict = verdicts[name]
            verdict.status, verdict.killer = status, killer if status != "survived" else ""
            verdict.seconds += seconds
        left = [
            mutant
            for mutant in left
            if (found := verdicts[mutant.name].status) not in ("killed", "timeout")
            and not (found and at_import.isdisjoint(mutant.function))
        ]
    for mutant in chosen:
        verdict = verdicts[mutant.name]
        verdict.status = verdict.status or "survived"
        if verdict.status == "survived" and not trial.tests_of(mutant):
            verdict.reason = "no test executes it"
    return list(verdicts.values())


@functools.cache
def _called_at_import() -> set[str]:
    files = [path for folder in ("imitate", "tests") for path in (ROOT / folder).rglob("*.py")]
    return {name for path in files for name in called_at_import(path.read_text(encoding="utf-8"))}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--modules", nargs="+", default=[], metavar="NAME")
    which.add_argument("--draw", type=int, metavar="N", help="number of modules, drawn at random")
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="add tests to the map")
    parser.add_argument("--map", type=Path, default=mutation_map.FOLDER, help="folder of the map")
    parser.add_argument("--sample", type=int, help="number of mutants per module, drawn at random")
    parser.add_argument(
        "--signs", action="store_true", help="only exchanges of plus and minus, and omitted minuses"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--workers", type=int, default=1, help="number of mutants at a time")
    parser.add_argument(
        "--test-s", type=float, default=5.0, help="largest CPU seconds of a test that is run"
    )
    parser.add_argument(
        "--budget-s", type=float, default=15.0, help="largest CPU seconds of all tests for a mutant"
    )
    before = parser.add_mutually_exclusive_group()
    before.add_argument("--again", type=Path, help="try only the survivors in an earlier --json")
    before.add_argument("--same", type=Path, help="try the mutants of an earlier --json")
    parser.add_argument(
        "--at-least", type=float, default=95.0, help="smallest percentage per group for exit code 0"
    )
    parser.add_argument("--json", type=Path, help="report to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
