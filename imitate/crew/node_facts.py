"""Facts of a machine on which results may depend: versions of packages and the processor's model."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from imitate.system.version import __version__

PACKAGES = ("torch", "mujoco", "robosuite", "ray")


def node_facts() -> dict[str, str]:
    """Return versions of this machine's Python and packages, "-" if one is missing, and ``cpu``, its processor."""
    facts = {"imitate": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        facts[package] = "-"
        with suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    return {**facts, "cpu": cpu_model()}


def cpu_model() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def differing(facts: dict[str, dict[str, str]]) -> dict[str, dict[str, list[str]]]:
    """Return for each fact in which nodes differ: its values, and the nodes that have each.

    Args:
        facts: facts of each node, by its name.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name in next(iter(facts.values()), {}):
        values: dict[str, list[str]] = {}
        for node, of_node in facts.items():
            values.setdefault(of_node.get(name, "-"), []).append(node)
        if len(values) > 1:
            found[name] = values
    return found
