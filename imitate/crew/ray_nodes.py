"""The nodes of a Ray cluster, and facts of a machine on which results may depend."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from imitate.crew.ray_cluster import Cluster
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


ANSWER_S = 60.0
"""Seconds that a node has to report its facts, for which it starts a process."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes:
        name: its address, with the beginning of its id if several nodes share it.
        resources: all its resources, such as ``CPU`` and ``GPU``.
        facts: see :func:`imitate.crew.ray_nodes.node_facts`; empty if it did not answer.
    """

    name: str
    resources: dict[str, float]
    facts: dict[str, str] = field(default_factory=dict)


def nodes_of(cluster: Cluster) -> list[Node]:
    """Return the nodes that are alive, by their names."""
    ray = cluster.ray
    alive = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(node_facts)
    asked = [task.options(scheduling_strategy=_on(ray, node)).remote() for node in alive]
    ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
    addresses = [node["NodeManagerAddress"] for node in alive]
    found = []
    for node, answer in zip(alive, asked, strict=True):
        facts: dict[str, str] = {}
        with suppress(ray.exceptions.RayError):
            facts = ray.get(answer, timeout=0)
        address = node["NodeManagerAddress"]
        name = address if addresses.count(address) == 1 else f"{address} {node['NodeID'][:6]}"
        found.append(Node(name, node["Resources"], facts))
    return sorted(found, key=lambda node: node.name)


def spilled_bytes(cluster: Cluster) -> int | None:
    """Return the bytes that the object stores wrote to disks, or None if Ray does not report it."""
    with suppress(ImportError, AttributeError, TypeError):
        api: Any = import_module("ray._private.internal_api")
        state = api.get_state_from_address(cluster.ray.get_runtime_context().gcs_address)
        stats = api.get_memory_info_reply(state).store_stats
        return max(0, int(stats.spilled_bytes_total) - int(stats.restored_bytes_total))
    return None


def _on(ray: Any, node: dict[str, Any]) -> Any:
    strategies = ray.util.scheduling_strategies
    return strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
