"""``imitate cluster``: show the nodes on which ``--on`` would run workers."""

import json
from typing import Annotated, Any

import typer

from imitate.cli.options import AsJson
from imitate.errors import printable

DIFFER = 2


def command(
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="ray: the cluster of RAY_ADDRESS, or the one that `ray start` started on this machine, or else a "
            "private one on this machine; ray:HOST:PORT: the cluster at that address; local: this machine "
            "without Ray.",
        ),
    ] = "ray",
    cpus: Annotated[
        float, typer.Option("--cpus", min=0.0, help="CPU cores that each worker needs.")
    ] = 1.0,
    gpus: Annotated[
        float, typer.Option("--gpus", min=0.0, help="GPUs that each worker needs.")
    ] = 0.0,
    json_: AsJson = False,
) -> None:
    r"""Show the nodes of a cluster: how many workers fit, and whether all nodes have the same software.

    \b
    places    number of workers that fit, a good value for --workers
    versions  of imitate, Python, torch, mujoco, robosuite and ray on each node
    cpu       model of the processor: results differ in their last digits between models
    spilled   bytes of objects that did not fit in memory and were moved to disk

    A cluster is found or started as with --on in other commands, so this also tests the connection and the token.
    All nodes need the same version of imitate. Other differences are allowed, but the same seed may then
    give another episode on another node.

    Exit codes: 0 all nodes have the same software; 2 they differ, or there is no such cluster.
    """
    from imitate.crew.ray_cluster import differing

    found = _found(on, cpus, gpus)
    facts = {node["name"]: node["facts"] for node in found["nodes"] if node["facts"]}
    found["differing"] = differing(facts)
    if json_:
        typer.echo(json.dumps(found, indent=2))
    else:
        for line in _lines(found):
            typer.echo(printable(line))
    if found["differing"] or len(facts) < len(found["nodes"]):
        raise typer.Exit(DIFFER)


def _found(on: str, cpus: float, gpus: float) -> dict[str, Any]:
    """Return the back end's name, its nodes, the number of workers that fit, and the bytes moved to disk."""
    from imitate.crew import open_backend
    from imitate.crew.ray_cluster import node_facts

    with open_backend(on, cpus=cpus, gpus=gpus) as backend:
        places, spilled = backend.places, None
        nodes = [
            {"name": "this machine", "resources": {"CPU": float(places)}, "facts": node_facts()}
        ]
        if on != "local":
            from imitate.crew.ray_cluster import connected, nodes_of, spilled_bytes

            with connected(on.partition(":")[2] or None) as cluster:
                nodes = [vars(node) for node in nodes_of(cluster)]
                spilled = spilled_bytes(cluster)
    return {"on": on, "nodes": nodes, "places": places, "spilled_bytes": spilled}


def _lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for node in found["nodes"]:
        have = [f"{node['resources'].get(kind, 0):g} {kind}" for kind in ("CPU", "GPU")]
        facts = {name: value for name, value in node["facts"].items() if value != "-"}
        cpu = facts.pop("cpu", "did not answer")
        versions = "  ".join(f"{name} {value}" for name, value in facts.items())
        lines.append(f"{node['name']}  {'  '.join(have)}  {versions}  {cpu}")
    lines.append(f"places: {found['places']}")
    if found["spilled_bytes"] is not None:
        lines.append(f"spilled: {found['spilled_bytes'] / 1e6:.0f} MB")
    for name, values in found["differing"].items():
        words = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in values.items())
        lines.append(f"nodes differ in {name}: {words}")
    return lines
