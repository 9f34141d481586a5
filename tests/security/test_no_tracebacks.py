"""Files that once ended a command in a traceback; and changed files of a small seed of the fuzz."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from shlex import quote

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import fuzz
from imitate import load_config
from imitate.cli.main import app
from imitate.cli.reports.lerobot import _shape
from imitate.data import DatasetFile
from imitate.data.file.hdf5_format import natural_key
from imitate.data.formats.convert import convert
from imitate.deploy.comparison.trial_file import Trial, TrialFile
from imitate.errors import ConfigError, DatasetError, UserError
from imitate.evaluate.result import ResultsFile
from imitate.policy.checkpoint import _is_object
from imitate.system.run_folder import RunFolder
from imitate.train.interactive.dagger import RoundFiles
from imitate.train.metrics import MetricsFile
from imitate.train.sweep.curves import Curve, read_curves
from imitate.train.sweep.state import read_run, table_rows
from tests import fork_server
from tests.data.formats import samples
from tests.demo_files import episode, write_demos
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demos = (
        episode(5, {"flat": np.arange(15.0).reshape(5, 3) + start}, np.full((5, 1), start))
        for start in range(2)
    )
    write_demos(tmp_path / "d.hdf5", demos, PENDULUM)
    train = {**fuzz.TREE["train"], "data": [{"path": str(tmp_path / "d.hdf5")}]}
    Path("cfg.json").write_text(json.dumps({**fuzz.TREE, "train": train}))
    return tmp_path


def attr(name, value, of="data/demo_0"):
    return lambda file: file[of].attrs.__setitem__(name, value)


def array(key, values):
    def changed(file):
        file["mask/first"] = np.array([b"demo_0"])
        del file[key]
        file[key] = values

    return changed


def env_args(**changes):
    return attr("env_args", json.dumps({**PENDULUM, **changes}), "data")


ZARR = "dataset convert d.hdf5 o.zarr --to diffusion-policy"
INIT, MERGE = "config init d.hdf5 --out c.json", "dataset merge d.hdf5 --out m.hdf5"
TRAIN, REPORT = "train --config cfg.json -q", "dataset report d.hdf5 --out r.html"
TYPED = np.zeros(5, [("a", "f4")])
PLACES = {
    "many digits": (
        lambda file: file.move("data/demo_0", "data/demo_" + "9" * 5000), ["info d.hdf5", INIT, TRAIN], 0
    ),
    "type a list": (env_args(type=[2]), ["info d.hdf5", INIT, MERGE, "check-env d.hdf5"], 2),
    "name a number": (env_args(env_name=3), [MERGE], 2),
    "deep arguments": (attr("env_args", '{"a":' * 900 + "1" + "}" * 900, "data"), ["info d.hdf5"], 2),
    "compound actions": (array("data/demo_0/actions", TYPED), [INIT, TRAIN], 2),
    "text for rewards": (array("data/demo_0/rewards", np.array([b"x"] * 5)), ["info d.hdf5"], 2),
    "success an array": (attr("success", np.zeros(3)), [INIT, TRAIN], 2),
    "long doubles": (array("data/demo_0/obs/flat", np.zeros((5, 3), np.longdouble)), ["dataset doctor d.hdf5"], None),
    "float16 at its end": (array("data/demo_0/obs/flat", np.full((5, 3), 65504, "f2")), [REPORT], None),
    "rate an array": (attr("control_freq", np.ones(3), "data"), [REPORT], 0),
    "attribute without a name": (attr(b"\xff", 1), [MERGE], 2),
    "wider actions in one demo": (array("data/demo_1/actions", np.ones((5, 2))), [INIT, ZARR], 2),
    "a wider vector in one demo": (array("data/demo_1/obs/flat", np.ones((5, 4))), [INIT, ZARR], 2),
    "more dimensions than lines": (
        array("data/demo_0/obs/flat", np.zeros((5, 2**16 + 1), "u1")),
        ["dataset stats d.hdf5 --filter-key first", "dataset stats d.hdf5 --json --filter-key first"],
        2,
    ),
    "endless and empty": (array("data/demo_0/actions", np.zeros((0, 0))), [TRAIN], 2),
}  # fmt: skip


def one_line(words):
    done = CliRunner().invoke(app, shlex.split(words))
    assert isinstance(done.exception, SystemExit) and done.exit_code == 2, (words, done.exception)
    assert done.output.count("\n") == done.output.count("error: ") == 1, done.output
    return done.output


def test_links_in_a_circle_and_pipes_are_one_line(place):
    Path("c.pth").symlink_to("c.pth")
    for words in ("info c.pth", f"{TRAIN} --init c.pth"):
        one_line(words)
    os.mkfifo("p.pth")
    for words in ("export p.pth --out b.zip", "eval --agent p.pth", f"{TRAIN} --init p.pth"):
        assert "is not a regular file" in one_line(words)
    Path("e.json").write_text(json.dumps({**PENDULUM, "type": [[]]}))
    done = CliRunner().invoke(app, ["check-env", "e.json"])
    assert (done.exit_code, "is [[]]; environments" in done.output) == (1, True), done.exception


def test_a_name_of_two_lines_makes_no_line_of_a_report(place):
    forged = "a\nforged 100 %"
    with h5py.File("d.hdf5", "r+") as file:
        for demo in file["data"].values():
            demo[f"obs/{forged}"] = np.ones(5)
        env_args(env_name=forged)(file)
    policies = {letter: {"name": forged, "sha256": ""} for letter in "AB"}
    settings = {"alpha": 0.05, "judge": "robot"}
    with TrialFile(place / "c.jsonl", policies, settings) as file:
        for position in (0, 1):
            file.add(Trial(0, position, True, note=forged))
    for words, count in (("info d.hdf5", 2), ("compare --report --out c.jsonl", 4)):
        lines = CliRunner().invoke(app, words.split()).output.splitlines()
        assert sum("a\\nforged" in line for line in lines) == count
        assert not [line for line in lines if line.startswith("forged")]


def odd_shape(ckpt):
    ckpt["model"]["nets"] = {key: value.t() for key, value in ckpt["model"]["nets"].items()}


def moments(**odd):
    return lambda ckpt: ckpt["model"]["optimizers"]["policy"]["state"][0].update(odd)


RESUMED = {
    "size mismatch": odd_shape,
    "exp_avg has shape (), but its weight has shape (4, 3)": moments(exp_avg=torch.zeros(())),
    "exp_avg_sq has shape (0,), but its weight": moments(exp_avg_sq=[]),
    "could not convert string to float": moments(step="x"),
    "must be real number": lambda ckpt: ckpt["model"]["optimizers"]["policy"]["param_groups"][
        0
    ].update(lr="x"),
    "the saved learning-rate schedule has 'last_epoch' 'x'": lambda ckpt: ckpt["model"][
        "schedulers"
    ]["policy"].update(last_epoch="x"),
    "wall_s is '1'": lambda ckpt: ckpt["train_state"].update(wall_s="1"),
    "'int' object is not subscriptable": lambda ckpt: ckpt["model"]["optimizers"].update(
        policy=2**63
    ),
    "KeyError": lambda ckpt: ckpt["train_state"].pop("step"),
    "position 1000000 is beyond its 624 numbers": lambda ckpt: ckpt["train_state"]["rng"].update(
        numpy=(*ckpt["train_state"]["rng"]["numpy"][:2], 10**6, 0, 0.0)
    ),
    "'datasets'": lambda ckpt: ckpt["provenance"].pop("datasets"),
}


def test_a_run_is_resumed_from_no_state_that_does_not_fit(place):
    assert CliRunner().invoke(app, TRAIN.split()).exit_code == 0
    (last,) = place.glob("runs/t/*/checkpoints/last.pth")
    kept = last.read_bytes()
    for words, change in RESUMED.items():
        last.write_bytes(kept)
        ckpt = torch.load(last, weights_only=True)
        change(ckpt)
        torch.save(ckpt, last)
        said = one_line(f"train --resume {quote(str(last.parents[1]))} -q --epochs 2")
        assert f"{last}: no run can be resumed from it" in said and words in said
    for odd in (torch.zeros(()), np.float64(3)):
        last.write_bytes(kept)
        ckpt = torch.load(last, weights_only=True)
        ckpt["model"]["optimizers"]["policy"]["state"] = {
            0: {**dict.fromkeys(("step", "exp_avg", "exp_avg_sq"), odd)}
        }
        torch.save(ckpt, last)
        optimizers = "--set experiment.ckpt_optimizers=true --set experiment.ckpt_path"
        assert "do not fit this configuration: exp_avg has shape ()" in one_line(
            f"{TRAIN} {optimizers}={quote(str(last))}"
        )


def test_a_checkpoint_chooses_neither_where_a_run_is_written_nor_its_cluster(place):
    assert CliRunner().invoke(app, TRAIN.split()).exit_code == 0
    (last,) = place.glob("runs/t/*/checkpoints/last.pth")

    def changed(section, key, value):
        ckpt = torch.load(last, weights_only=True)
        tree = json.loads(ckpt["config"])
        tree[section][key] = value
        torch.save({**ckpt, "config": json.dumps(tree)}, "c.pth")

    changed("train", "output_dir", str(place / "outside"))
    assert CliRunner().invoke(app, ["train", "--init", "c.pth", "-q"]).exit_code == 0
    assert not (place / "outside").exists() and len(list(place.glob("runs/t_tuned/*"))) == 1
    for name in ("../../outside", str(place / "outside")):
        changed("experiment", "name", name)
        assert "experiment.name: would put the run outside of train.output_dir" in one_line(
            "train --init c.pth -q"
        )
    place_of = "ray:127.0.0.1:9"
    changed("cluster", "on", place_of)
    config = last.parents[1] / "config.json"
    config.write_text(json.dumps(json.loads(torch.load("c.pth", weights_only=True)["config"])))
    for words in (
        "train --init c.pth -q",
        f"train --resume {quote(str(config.parent))} -q --epochs 2",
    ):
        assert f"a file names the cluster {place_of}" in one_line(words)
        for trusted in (f"--on {place_of}", f"--trust {place_of}"):
            done = CliRunner().invoke(app, shlex.split(f"{words} {trusted}"))
            assert done.exit_code == 0, done.output  # a training without workers connects to none
            os.environ.pop("IMITATE_TRUST_MODULES", None)


@pytest.mark.parametrize("name", PLACES)
def test_a_changed_file_gives_an_answer_or_one_line(place, name):
    change, commands, code = PLACES[name]
    with h5py.File("d.hdf5", "r+") as file:
        change(file)
    for words in commands:
        done = CliRunner().invoke(app, words.split())
        assert isinstance(done.exception, SystemExit | None), (words, done.exception)
        assert done.exit_code == code or code is None, (words, done.output)
        errors = [line for line in done.output.splitlines() if line.startswith("error:")]
        assert len(errors) == (done.exit_code == 2)


def test_an_array_of_no_width_claims_no_steps(place):
    with h5py.File("d.hdf5", "r+") as file:
        del file["data/demo_0/actions"]
        sizes = {"shape": (2**40, 0), "chunks": (64, 1), "maxshape": (None, None)}
        file["data/demo_0"].create_dataset("actions", dtype="f4", **sizes)
    with DatasetFile("d.hdf5") as file, pytest.raises(DatasetError, match="claims"):
        file.length("demo_0")


@pytest.mark.parametrize(
    "text", ['{"a":' * 5000, "9" * 5000, '{"train": {"reward": {"clip": []}}, "algo_name": "sac"}']
)
def test_a_configuration_gives_one_line(place, text):
    Path("x.json").write_text(text)
    done = CliRunner().invoke(app, ["config", "check", "x.json"])
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)


def test_a_resumed_run_builds_no_networks_beyond_its_weights(place, monkeypatch):
    monkeypatch.setattr("imitate.algo.base.allocation.free_memory", lambda: 10**10)
    assert CliRunner().invoke(app, TRAIN.split()).exit_code == 0
    (config,) = place.glob("runs/t/*/config.json")
    for layers, words in (([2**40], "memory are free"), ([30000, 30000], "its weights are")):
        tree = json.loads(config.read_text())
        tree["algo"]["actor_layer_dims"] = layers
        config.write_text(json.dumps(tree))
        done = CliRunner().invoke(app, ["train", "--resume", str(config.parent), "-q"])
        assert (done.exit_code, words in done.output) == (2, True), done.output
        assert done.output.count("\n") == 1


def test_memory_that_is_not_there_is_one_line(place, monkeypatch):
    for error in (
        MemoryError("Unable to allocate 7 TiB"),
        RuntimeError("CPU: can't allocate memory: 8 bytes"),
    ):
        monkeypatch.setattr(DatasetFile, "demos", lambda *given, told=error: raised(told))
        done = CliRunner().invoke(app, ["dataset", "stats", "d.hdf5"])
        assert done.exit_code == 2
        assert done.output.startswith(f"error: there is not enough memory ({error}): ")


def raised(error):
    raise error


def test_what_is_no_number_is_left_out_of_metrics(tmp_path):
    metrics = MetricsFile(RunFolder(tmp_path).metrics)
    good = {"kind": "epoch", "epoch": 1, "Train/Loss": 0.5, "Valid/Loss": None}
    lines = [
        {**good, "Train/Loss": "x", "a": [], "b": {}},
        good,
        {"epoch": "1"},
        {"epoch": 10**4000},
    ]
    metrics.path.write_text("\n".join([*map(json.dumps, lines), "[" * 5000]))
    assert metrics.read() == [{k: v for k, v in good.items() if k != "Train/Loss"}, good]


def test_names_sort_by_their_numbers_of_any_length():
    long = "demo_" + "9" * 5000
    names = ["demo_10", "demo_2", long, "a", "2", "10", "demo_002", "demo_"]
    wanted = ["2", "10", "a", "demo_", "demo_002", "demo_2", "demo_10", long]
    assert sorted(names, key=natural_key) == wanted
    with pytest.raises(DatasetError, match="has the shape inf"):
        _shape(float("inf"), Path("info.json"))


@pytest.mark.parametrize(
    "text", ['"x"', "[]", '{"experiment": 3}', '{"experiment": {}, "train": []}']
)
def test_what_is_no_configuration_of_a_run_has_no_curve(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with refused("config.json: is not the configuration of a run", error=UserError):
        read_curves([tmp_path])


@pytest.mark.parametrize("line", [{"epoch": 1}, {"epoch": 1, "step": None}])
def test_a_line_of_metrics_without_its_step_has_no_place(line):
    with refused("run 'a': a line of its metrics has no step", error=UserError):
        Curve("a", (), ()).place(line, "step")


def test_files_of_a_sweep_may_hold_anything(tmp_path):
    folder = tmp_path / "lr=1" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for text in ("[]", "3", "{}", '{"status": 3}'):
        (folder / "results.json").write_text(text)
        with refused("results.json: contains no status of a run", error=ConfigError):
            read_run(folder.parent, {})
    odd = {
        "status": "finished",
        "final": 3,
        "best": {"success_rate": "x"},
        "times": [],
        "train_loss": {},
    }
    (folder / "results.json").write_text(json.dumps(odd))
    assert table_rows([read_run(folder.parent, {})]) == (["status"], [["finished"]])
    rates = {"success_rate": 0.5, "success_rate_95": "x"}
    (folder / "results.json").write_text(json.dumps({**odd, "final": rates}))
    assert table_rows([read_run(folder.parent, {})])[1] == [["50 %", "finished"]]


@pytest.mark.parametrize(
    "text",
    ["{}", '{"rounds": 3, "settings": {}}', '{"rounds": [{"episodes": "x"}], "settings": 3}'],
)
def test_the_progress_of_rounds_may_hold_anything(tmp_path, text):
    (tmp_path / "progress.json").write_text(text)
    files = RoundFiles(tmp_path, None, {}, {}, labels_all=False)
    for read in (files.recorded_before, lambda: files.begun(None, None)):
        with refused("progress.json: is not a progress file", error=ConfigError):
            read()


def test_a_table_of_evaluations_may_hold_anything(tmp_path):
    for text in ('{"evaluations": [3]}', '{"evaluations": 3}', "[]", '"x"'):
        (tmp_path / "t.json").write_text(text)
        with refused("t.json: is not a table of evaluations", error=ConfigError):
            ResultsFile(tmp_path / "t.json", resume=True)


def test_configurations_are_nested_as_deep_as_files(tmp_path):
    deep = json.loads('{"a":' * 400 + "1" + "}" * 400)
    with refused("the configuration: is nested deeper", error=UserError):
        load_config(deep)
    with pytest.raises(ValueError, match="is nested deeper"):
        _is_object(json.dumps(deep))


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ("diffusion-policy", "d.zarr/data/action/0.0"),
        ("lerobot, ours", "lift/meta/tasks.parquet"),
        ("minari, ours", "lift-v0/data/main_data.hdf5"),
    ],
)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_no_part_of_a_dataset_is_a_pipe_or_a_device(tmp_path, sample, name, kind):
    form, folder, make = samples.MAKERS[sample]
    make(tmp_path / folder)
    path = tmp_path / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with refused(f"{path}: is not a regular file"):
        convert(tmp_path / folder, tmp_path / "o.hdf5", from_format=form)


@pytest.mark.parametrize("output", ["full", "closed"])
def test_an_output_that_takes_nothing_is_one_line(place, output):
    where = ">/dev/full" if output == "full" else ">&-"
    command = f"{sys.executable} -m imitate info d.hdf5 {where}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, shell=True, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2 * (output == "full")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.count("error:") == int(output == "full")


def test_a_full_disk_leaves_no_part_of_a_picture(place, monkeypatch):
    from matplotlib.figure import Figure

    from imitate.system.plain_files import replaced

    def full(self, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left") as caught, replaced(place / "p.png") as part:
        Figure().savefig(part)
    assert caught.value.filename == str(place / "p.png")
    assert not list(place.glob("*p.png*"))


@pytest.mark.slow("nine commands, each in a process of its own")
def test_a_small_seed_of_the_fuzz():
    words = ("--seed", "7", "--runs", "9", "--limit-s", "600")
    kinds = ("--kinds", "h5,checkpoint,config,run,shards")
    code, printed = fork_server.run_module("benchmarks.fuzz", *words, *kinds)
    assert code == 0, printed
    runs = int(printed.splitlines()[-1].split("|")[2])
    assert runs > 5


def test_an_environment_of_another_format_has_arguments_that_are_checked(place):
    Path("tasks").mkdir()
    samples.libero_task(Path("tasks/one_demo.hdf5"))
    command = "dataset convert tasks lr --from libero --to lerobot"
    for kwargs in ("x", {"control_freq": "x"}):
        with h5py.File("tasks/one_demo.hdf5", "r+") as file:
            meta = json.loads(file["data"].attrs["env_args"])
            file["data"].attrs["env_args"] = json.dumps({**meta, "env_kwargs": kwargs})
        if kwargs == "x":
            assert "'env_kwargs' of its environment is 'x': write a JSON object" in one_line(
                command
            )
    done = CliRunner().invoke(app, command.split())
    assert (done.exit_code, "fps: 20: the dataset does not record" in done.output) == (0, True)


def test_a_demo_that_is_no_group_is_named_as_that(place):
    with h5py.File("d.hdf5", "r+") as file:
        del file["data/demo_1"]
        file["data/demo_1"] = np.zeros(3)
    assert "'data/demo_1' is not a group of arrays" in one_line("info d.hdf5")
