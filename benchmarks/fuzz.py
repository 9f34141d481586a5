"""Fuzzing of the commands that read files, which counts tracebacks, hangs and excessive memory on changed files.

    python benchmarks/fuzz.py --seed 1 --runs 500                 # all kinds of files
    python benchmarks/fuzz.py --seed 2 --kinds h5,checkpoint --keep failures

Each run copies a small valid file, changes one thing in it that its format allows (a
type, a link, a name, a value, an entry of an archive), and runs one command on it in a forked process with a bound on
address space and time. An answer (exit code 0, 1 or 3) and a refusal (2) without a traceback are correct. The program
counts tracebacks, hangs (more than ``--limit-s`` seconds of CPU time, or waiting for so long without using any), and
runs of more than 4 GB. ``--keep FOLDER`` keeps the files and the output of each failure.
"""

# ruff: noqa: E501 - tables of values

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
import onnx
import torch

import imitate
from imitate.cli.main import VERBS, _LazyVerb
from imitate.crew import local
from imitate.deploy.bundle.archive import Bundle, read_bundle, write_bundle
from imitate.errors import UserError
from imitate.train import trainer

PRELOADED = [
    "gymnasium", "gymnasium.envs.classic_control", "imageio", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "onnx", "pyarrow.dataset", "pyarrow.parquet", "zarr", "PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.JpegImagePlugin",
    "PIL.PpmImagePlugin", "torch._dynamo", "torch.utils.tensorboard", "typer.rich_utils", "webbrowser",
    "xml.etree.ElementTree",
]  # fmt: skip
"""Modules that the parent process imports once for all runs."""
SPACE, MOST, FEW = 12 * 2**30, 4 * 2**30, 50
TREE = {
    "algo_name": "bc",
    "experiment": {"name": "t", "epoch_every_n_steps": 1, "rollout": {"enabled": False}, "logging": {"log_tb": False}},
    "train": {"data": [{"path": "d.hdf5"}], "output_dir": "runs", "num_epochs": 1, "batch_size": 2},
    "algo": {"actor_layer_dims": [4]},
    "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
}  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, -0.0, 1e308, float("nan"), float("inf"), "", "x" * 5000, "a/b", "../x", "\x1b[2J",
    "os:system", "\udc80", [], [2], [[[]]], {}, {"a": 1}, ["a", 1], "1e999", "0", b"\xff",
]  # fmt: skip
IN_JSON = [x for x in ODD if not isinstance(x, bytes)]
IN_ATTRIBUTES = [
    x for x in ODD if not isinstance(x, dict | type(None)) and x not in (10**400, [[[]]], ["a", 1])
]
ATTRIBUTES = ["env_args", "total", "num_samples", "success", "control_freq", "model_file", b"\xff"]
DEMOS = ["demo_" + "9" * 5000, "demo", "ü", "\x1b[2J", "demo_0x", "-1"]
SHAPES = [(2**40, 3), (2**40, 0), (0, 2**40), (3,), (2**20, 2**20)]
DTYPES = [h5py.string_dtype(), h5py.vlen_dtype("f4"), h5py.ref_dtype, h5py.enum_dtype({"a": 1})]
TEXTS = [
    b"", b"{", b"\xff\xfe{}", b"[" * 5000 + b"]" * 5000, b'{"a":' * 900 + b"1" + b"}" * 900, b"9" * 5000, b"null", b"[]",
    b'"x"', b"{}", b"\x00" * 100, b'{"epoch": "x", "Train/Loss": []}', b"NaN", b"1e999",
]  # fmt: skip

# ---- changes of files --------------------------------------------------------------------------------


def change_json(path: Path, rng: random.Random) -> str:
    """Replace a value in a tree of values, or change the text."""
    if rng.random() < 0.2:
        path.write_bytes(rng.choice(TEXTS))
        return "text"
    lines = path.suffix == ".jsonl"
    texts = path.read_text().splitlines() if lines else [path.read_text()]
    place = rng.randrange(len(texts)) if texts else 0
    tree = json.loads(texts[place]) if texts else {}
    words = change_tree(tree, rng, IN_JSON)
    texts = [*texts[:place], json.dumps(tree), *texts[place + 1 :]]
    path.write_text("\n".join(texts) + "\n")
    return words


def change_tree(tree: Any, rng: random.Random, odd: list[Any]) -> str:
    """Replace, remove or add one value at a random place."""
    node, keys = tree, []
    while True:
        choices = list(node) if isinstance(node, dict) else range(len(node))
        if not choices:
            return "nothing"
        key = rng.choice(list(choices))
        keys.append(str(key))
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        break
    if isinstance(node, dict) and rng.random() < 0.15:
        del node[key]
        return f"without {'.'.join(keys)}"
    node[key] = rng.choice(odd)
    return f"{'.'.join(keys)} = {str(node[key])[:30]!r}"


def odd_arrays(rng: random.Random) -> np.ndarray[Any, Any]:
    n = rng.choice([0, 1, 5, 6])
    number = np.random.default_rng(rng.randrange(2**31))
    return rng.choice([
        lambda: number.normal(size=(n, 3)).astype(rng.choice(["f2", "f4", "f8", "g", "c8", "c16", ">f8"])),
        lambda: number.integers(0, 100, (n, 3)).astype(rng.choice(["i1", "u1", "u2", "i8", "u8", "?"])),
        lambda: np.full((n, 3), rng.choice([65504, np.nan, np.inf, 1e300, -1e30])),
        lambda: np.full((n, 3), 65504, np.float16), lambda: np.zeros((n, 0)), lambda: np.zeros(n), lambda: np.array(3.0),
        lambda: np.zeros((n, 3, 2, 2)), lambda: np.array([b"text"] * n), lambda: np.zeros(n, [("a", "f4"), ("b", "i8")]),
        lambda: number.integers(0, 255, (n, 4, 4, 3)).astype("u1"), lambda: np.zeros((n, 2)),
    ])()  # fmt: skip


def change_h5(path: Path, rng: random.Random) -> str:
    """Change one object, attribute, link or name of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name, kind = rng.choice(names), rng.randrange(9)
        if kind == 0:
            del file[name]
        elif kind == 1:
            del file[name]
            file[name] = odd_arrays(rng)
        elif kind == 2:
            del file[name]
            file.create_dataset(name, (5,), rng.choice(DTYPES))
        elif kind == 3:
            del file[name]
            links = [
                h5py.SoftLink("/nowhere"),
                h5py.SoftLink("/"),
                h5py.ExternalLink("/etc/passwd", "/"),
            ]
            file[name] = rng.choice([*links, file["data"]])
        elif kind == 4:
            with contextlib.suppress(TypeError, ValueError, OverflowError, UnicodeEncodeError):
                key = rng.choice(ATTRIBUTES)
                file[name if rng.random() < 0.5 else "data"].attrs[key] = rng.choice(IN_ATTRIBUTES)
        elif kind == 5:
            meta = json.loads(file["data"].attrs["env_args"])
            change_tree(meta, rng, IN_JSON)
            file["data"].attrs["env_args"] = rng.choice([json.dumps(meta), "[" * 5000, "9" * 5000])
        elif kind == 6:
            file.move("data/demo_0", "data/" + rng.choice(DEMOS))
        elif kind == 7:
            del file[name]
            shape = rng.choice(SHAPES)
            chunks = tuple(max(1, min(x, 64)) for x in shape)
            file.create_dataset(name, shape, "f4", chunks=chunks, compression="gzip")
        else:
            del file[name]
            file.create_group(name)
        return f"{name[:40]} {kind}"


def odd_tensors(rng: random.Random) -> Any:
    w = torch.zeros(4, 3)
    return rng.choice([
        lambda: w.expand(2**10, 4, 3), lambda: torch.zeros(1).expand(2**40), lambda: w.to("meta"), lambda: w.to_sparse(),
        lambda: torch.nested.nested_tensor([w, w]), lambda: w.to(torch.complex64), lambda: w > 0, lambda: w.long(),
        lambda: w.half(), lambda: w.bfloat16(), lambda: w.double(), lambda: w * float("nan"), lambda: torch.zeros(0),
        lambda: torch.zeros(()), lambda: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), lambda: torch.zeros(10**6),
        lambda: w.t(), lambda: w.to_mkldnn(),
    ])()  # fmt: skip


def change_checkpoint(path: Path, rng: random.Random) -> str:
    """Change a value, a weight, the configuration or the archive of a checkpoint."""
    kind = rng.randrange(5)
    if kind < 4:
        ckpt = torch.load(path, weights_only=True)
        if kind == 0:
            config = json.loads(ckpt["config"])
            words = change_tree(config, rng, IN_JSON)
            ckpt["config"] = rng.choice(
                [json.dumps(config)] * 9 + ["[" * 5000, '{"a":' * 900 + "1" + "}" * 900]
            )
        elif kind == 1:
            nets = ckpt["model"]["nets"]
            words = rng.choice(list(nets))
            nets[words] = odd_tensors(rng)
        else:
            words = change_tree(ckpt, rng, [*ODD, odd_tensors(rng), odd_tensors(rng)])
        with contextlib.suppress(NotImplementedError, RuntimeError):
            torch.save(ckpt, path)
        return words
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    place = rng.randrange(len(entries))
    name, data = entries[place]
    at = rng.randrange(len(data) + 1)
    pickles = [
        b"\x80\x02cos\nsystem\n(X\x01\x00\x00\x00xtR.",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x02\x85R.",
    ]
    entries[place : place + 1] = rng.choice(
        [[], [(name, data)] * 2, [(name, data[:at])], [(name, data[:at] + b"\xff" + data[at + 1 :])], [(name, data * 2)],
         [(name, rng.choice(pickles))], [(name.upper(), data)]]
    )  # fmt: skip
    with zipfile.ZipFile(
        path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    ) as archive:
        for entry in entries:
            archive.writestr(*entry)
    return f"archive {name}"


def change_bundle(path: Path, rng: random.Random) -> str:
    """Change the description, the network or the numbers of a bundle, and compute its checksums again."""
    bundle = read_bundle(path)
    parts = {"network": bytearray(bundle.network), "arrays": bytearray(bundle.arrays)}
    words = rng.choice([*parts, "description", "graph", "graph"])
    if words == "description":
        words = change_tree(bundle.description, rng, IN_JSON)
    elif words == "graph":
        model = onnx.load_from_string(bundle.network)
        words = change_graph(model.graph, rng)
        parts["network"] = bytearray(model.SerializeToString())
    elif parts[words]:
        at = rng.randrange(len(parts[words]))
        parts[words][at : at + rng.choice([1, 10**6])] = rng.choice([b"", b"\xff", bytes(100)])
    path.unlink()
    write_bundle(Bundle(bundle.description, *map(bytes, parts.values())), path)
    return words


def change_graph(graph: Any, rng: random.Random) -> str:
    """Change a tensor, a node or an input of a network in ONNX."""
    kind = rng.choice(["initializer", "node", "input", "output"])
    part = rng.choice(list(getattr(graph, kind)))
    if kind == "initializer":
        tensor = onnx.numpy_helper.from_array(
            odd_arrays(rng).astype(rng.choice(["f4", "f8", "i8"])), part.name
        )
        tensor.dims[:] = rng.choice([list(tensor.dims), [2**40], [-1], [2**31, 2**31]])
        part.CopyFrom(tensor)
        if rng.random() < 0.3:
            part.data_location = 1
            part.external_data.add(
                key="location", value=rng.choice(["/etc/passwd", "../c.pth", "/dev/zero"])
            )
    elif kind == "node":
        part.op_type = rng.choice(
            [part.op_type, "Loop", "Expand", "ConstantOfShape", "NoSuchOp", "Identity"]
        )
        part.input[:] = rng.choice([part.input[:], part.input[::-1], [], part.input[:] * 2])
    else:
        part.type.tensor_type.elem_type = rng.choice([0, 1, 7, 8, 11, 99])
        for dim in part.type.tensor_type.shape.dim:
            dim.dim_value = rng.choice([0, -1, 1, 2**40])
    return f"{kind} {part.name[:30]}"


def change_file(path: Path, rng: random.Random) -> str:
    """Replace the file by one of another kind."""
    content = path.read_bytes()
    path.unlink()
    kind = rng.choice(
        ["pipe", "device", "folder", "loop", "sparse", "empty", "cut", "zeros", "dangling"]
    )
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop", "dangling"):
        path.symlink_to({"device": "/dev/zero", "loop": path.name, "dangling": "nowhere"}[kind])
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(
            {"cut": content[: len(content) // 2], "zeros": bytes(len(content))}.get(kind, b"")
        )
        if kind == "sparse":
            os.truncate(path, 40 * 2**30)
    return kind


# ---- kinds of files and their commands ---------------------------------------------------------------

TRAIN = "train --config cfg.json --quiet --output-dir out"
H5 = [
    "info d.hdf5", "info d.hdf5 --json", "dataset doctor d.hdf5", "dataset report d.hdf5 --out r.html", "dataset stats d.hdf5",
    "dataset split d.hdf5 --in-place --overwrite", "dataset merge d.hdf5 right.hdf5 --out m.hdf5", "config init d.hdf5 --out c.json", TRAIN,
    "dataset convert d.hdf5 o.zarr --to diffusion-policy", "dataset filter d.hdf5 good --min-length 2 --in-place",
    "dataset shard d.hdf5 --out s2", "check-env d.hdf5 --steps 2", "dataset delete d.hdf5 --demos demo_1 --out e.hdf5",
]  # fmt: skip
CHECKPOINT = [
    "info c.pth", "info c.pth --json", "eval --agent c.pth --episodes 1 --horizon 2 --workers 1 -q", f"{TRAIN} --init c.pth",
    "convert-checkpoint c.pth o.pth --to robomimic-0.5", "train --init c.pth --dataset d.hdf5 --output-dir out -q",
    "export c.pth --out bundle",
    f"{TRAIN} --set experiment.ckpt_path=c.pth --set experiment.ckpt_optimizers=true",
]  # fmt: skip
SWEEP = "sweep --config cfg.json --grid train.seed=[1,2] --output-dir sw --workers 1 --quiet"
RUN = [
    "info runs/t/1",
    "plot runs/t/1 --out p.png",
    "train --resume runs/t/1 --quiet",
    "eval --agent runs/t/1 --episodes 1 --horizon 2 -q",
]
KINDS: dict[str, tuple[list[str], list[Callable[[Path, random.Random], str]], list[str]]] = {
    "h5": (["d.hdf5"], [change_h5] * 15 + [change_file], H5),
    "checkpoint": (["c.pth"], [change_checkpoint] * 15 + [change_file], CHECKPOINT),
    "config": (["cfg.json"], [change_json] * 15 + [change_file], ["config check cfg.json", "config show cfg.json", TRAIN]),
    "run": (
        ["runs/t/1/config.json", "runs/t/1/metrics.jsonl", "runs/t/1/results.json", "runs/t/1/log.txt", "runs/t/1/.lock"],
        [change_json] * 8 + [change_file], RUN,
    ),
    "resume": (["runs/t/1/checkpoints/last.pth"], [change_checkpoint] * 15 + [change_file], ["train --resume runs/t/1 --quiet --epochs 2"]),
    "bundle": (["b.zip"], [change_bundle] * 15 + [change_file], ["info b.zip", "check-deploy b.zip d.hdf5"]),
    "sweep": (
        ["sw/t/sweep.json", "sw/t/results.json", "sw/t/seed=1/1/results.json", "sw/t/seed=1/1/config.json",
         "sw/t/seed=2/1/metrics.jsonl", "sw/t/settings.json"],
        [change_json] * 8 + [change_file], [SWEEP, "plot sw/t --out p.png", "info sw/t/seed=1"],
    ),
    "zarr": (
        ["z.zarr/data/action/.zarray", "z.zarr/meta/episode_ends/.zarray", "z.zarr/data/flat/.zarray", "z.zarr/data/action/0.0"],
        [change_json] * 8 + [change_file], ["dataset convert z.zarr o.hdf5", "info z.zarr", f"{TRAIN} --dataset z.zarr"],
    ),
    "minari": (
        ["m-v0/data/metadata.json", "m-v0/data/main_data.hdf5"], [change_json] * 4 + [change_h5] * 8 + [change_file],
        ["dataset convert m-v0 o.hdf5", "info m-v0"],
    ),
    "shards": (["s/index.json"], [change_json] * 8 + [change_file], ["info s", "dataset stats s", f"{TRAIN} --dataset s"]),
    "lerobot": (
        ["lr/meta/info.json", "lr/meta/stats.json"], [change_json] * 8 + [change_file],
        ["info lr", "config init lr --out c.json", "dataset convert lr o.hdf5", "dataset doctor lr", f"{TRAIN} --dataset lr"],
    ),
}  # fmt: skip


def originals(folder: Path, kinds: Sequence[str]) -> None:
    """Make valid files: one that all commands accept, and one of each kind."""
    from imitate.data import DatasetWriter, Episode

    rng = np.random.default_rng(0)
    with DatasetWriter(
        folder / "d.hdf5", {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}, control_freq=20
    ) as writer:
        for _ in range(3):
            ends = np.arange(5) == 4
            obs = {"flat": rng.normal(size=(5, 3)).astype("f4")}
            writer.append_episode(
                Episode(obs, rng.uniform(-1, 1, (5, 1)), np.zeros(5), ends, np.zeros(5, bool))
            )
    shutil.copy(folder / "d.hdf5", folder / "right.hdf5")
    (folder / "cfg.json").write_text(json.dumps(TREE))
    made = {
        "run": "train --config cfg.json --quiet",
        "bundle": "export c.pth --out b.zip",
        "shards": "dataset shard d.hdf5 --out s",
        "lerobot": "dataset convert d.hdf5 lr --to lerobot",
        "zarr": "dataset convert d.hdf5 z.zarr --to diffusion-policy",
        "minari": "dataset convert d.hdf5 m-v0 --to minari",
        "sweep": SWEEP,
    }
    for kind, words in made.items():
        if kind != "run" and kind not in kinds:
            continue
        code, said, _ = run(words.split(), folder, 600)
        if code:
            raise RuntimeError(f"{words}: {code} {said}")
        if kind == "run":
            (run_folder,) = (folder / "runs" / "t").iterdir()
            run_folder.rename(run_folder.with_name("1"))
            shutil.copy(folder / "runs/t/1/checkpoints/last.pth", folder / "c.pth")
    for one in list((folder / "sw/t").glob("seed=*/2*")):
        one.rename(one.with_name("1"))


def run(words: list[str], folder: Path, limit_s: float) -> tuple[int | None, str, int]:
    """Run a command in a forked process; return its exit code (None if it hung), its output and its memory in bytes."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _be_command(words, folder, output.fileno())
        code, used = _await(child, limit_s)
        output.seek(0)
        return code, output.read().decode(errors="replace"), used


def _be_command(words: list[str], folder: Path, output: int) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
        sys.argv = ["imitate", *words]
        from imitate.cli.main import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _await(child: int, limit_s: float) -> tuple[int | None, int]:
    """Wait for the end of a process, as long as its CPU time grows and is below the limit."""
    last, since = -1.0, time.monotonic()
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (
            int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        ) / os.sysconf("SC_CLK_TCK")
        if cpu_s > last:
            last, since = cpu_s, time.monotonic()
        if cpu_s > limit_s or time.monotonic() - since > limit_s:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            return None, usage.ru_maxrss * 1024
        time.sleep(0.02)


def judged(code: int | None, said: str, used: int) -> str:
    """Return the outcome of a run: "hang", "traceback", "memory", "refused" or "read"."""
    if code is None:
        return "hang"
    if "Traceback (most recent" in said or code < 0 or code == 70:
        return "traceback"
    if used > MOST:
        return "memory"
    return "refused" if code == 2 else "read"


def _import_all(runs: int) -> None:
    """Import the modules of the runs in the parent process: all of them for many runs, the most common ones for few."""
    if runs < FEW:
        for name in ("eval", "info", "train"):
            importlib.import_module(f"imitate.cli.{name}")
        return
    ours = [module.name for module in pkgutil.walk_packages(imitate.__path__, "imitate.")]
    for name in PRELOADED + [name for name in ours if not name.endswith("__main__")]:
        with contextlib.suppress(Exception):  # the module needs a package that is not installed
            importlib.import_module(name)
    for name, verb in VERBS.items():
        with contextlib.suppress(Exception):
            _LazyVerb(name, verb).load()


def fuzz(
    seed: int,
    runs: int,
    kinds: list[str],
    limit_s: float = 60.0,
    keep: Path | None = None,
    only: Sequence[int] = (),
) -> Counter[tuple[str, str]]:
    """Run changed files; returns the number of outcomes by kind."""
    _import_all(len(only) or runs)
    local.CONTEXT = multiprocessing.get_context("fork")  # also in worker processes
    torch.set_num_threads(1)
    gc.freeze()
    found: Counter[tuple[str, str]] = Counter()
    draw = trainer.draw_curves
    with tempfile.TemporaryDirectory() as place:
        base = Path(place, "right")
        base.mkdir()
        originals(base, kinds)
        for number in only or range(runs):
            if number and number % 100 == 0:
                counts = Counter(outcome for _, outcome in found.elements())
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                each_s = (used.ru_utime + used.ru_stime) / number
                print(f"{seed}: {number} runs, {each_s:.2f} CPU s each: {dict(counts)}", flush=True)
            rng = random.Random(f"{seed} {number}")
            kind = kinds[number % len(kinds)]
            targets, changes, commands = KINDS[kind]
            folder = Path(place, "changed")
            shutil.copytree(base, folder)
            words, target = rng.choice(commands), folder / rng.choice(targets)
            if not target.exists():
                shutil.rmtree(folder)
                continue
            said_of = _changed(target, rng.choice(changes), rng)
            if said_of is None:
                shutil.rmtree(folder)
                found[kind, "not made"] += 1
                continue
            if kind != "run":  # drawing takes half of a training's time
                trainer.draw_curves = _nothing
            code, said, used = run(words.split(), folder, limit_s)
            trainer.draw_curves = draw
            outcome = judged(code, said, used)
            found[kind, outcome] += 1
            if outcome in ("hang", "traceback", "memory"):
                print(
                    f"{seed} {number} {outcome}: imitate {words} | {target.name}: {said_of} | {(said.strip().splitlines() or [''])[-1][:200]}",
                    flush=True,
                )
                if keep is not None:
                    shutil.copytree(
                        folder,
                        keep / f"{seed}_{number}",
                        symlinks=True,
                        dirs_exist_ok=True,
                        ignore=_no_pipes,
                    )
                    (keep / f"{seed}_{number}.txt").write_text(said)
            shutil.rmtree(folder)
    return found


def _changed(
    target: Path, change: Callable[[Path, random.Random], str], rng: random.Random
) -> str | None:
    """Change a file; return a description of the change, or None if the library cannot make such a file."""
    if (
        change is change_json
        and target.suffix not in (".json", ".jsonl")
        and target.name != ".zarray"
    ):
        change = change_file
    if change is change_h5 and target.suffix != ".hdf5":
        change = change_file
    try:
        return change(target, rng)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, UserError):
        return None


def _nothing(folder: Any) -> None:
    """Draw no picture, in place of the plotting function."""


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())
    ]


def main() -> int:
    """Print the table of outcomes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument(
        "--limit-s",
        type=float,
        default=120.0,
        help="largest CPU seconds of a run, and longest time without CPU use",
    )
    parser.add_argument("--only", default="", help="numbers of runs to repeat, such as 109,327")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    kinds = given.kinds.split(",")
    only = [int(number) for number in given.only.split(",") if number]
    found = fuzz(given.seed, given.runs, kinds, given.limit_s, given.keep, only)
    outcomes = ("refused", "read", "traceback", "hang", "memory", "not made")
    print("| kind | runs | " + " | ".join(outcomes) + " |")
    for kind in [*kinds, "all"]:
        counts = [
            sum(n for (k, o), n in found.items() if o == outcome and kind in (k, "all"))
            for outcome in outcomes
        ]
        print(f"| {kind} | {sum(counts[:5])} | " + " | ".join(map(str, counts)) + " |")
    return int(any(n for (_, o), n in found.items() if o in ("traceback", "hang", "memory")))


if __name__ == "__main__":
    sys.exit(main())
