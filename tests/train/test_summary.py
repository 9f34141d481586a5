"""The table and the recommended checkpoint of a finished run, word by word."""

import json
from types import SimpleNamespace

import pytest

from imitate.system.run_folder import RunFolder
from imitate.train import summary as module
from imitate.train.forecast import smaller
from imitate.train.state import History

RESULTS = {
    "run": "runs/a",
    "status": "finished",
    "algo_name": "iql",
    "algo": "iql",
    "epoch": 3,
    "step": 300,
    "train_loss": 0.123456,
    "valid_loss": None,
    "times": {"train_wall_s": 65.0, "train_cpu_s": 7200.0, "evaluation_wall_s": 2.0},
    "checkpoint": None,
}
FINAL = {"epoch": 3, "success_rate": 0.5, "mean_return": 12.5}
PLAIN = [
    "run                runs/a",
    "status             finished",
    "algorithm          iql",
    "epochs, updates    3, 300",
    "loss: train, valid  0.1235, -",
    "training time      1 min 05 s (CPU 2 h 00 min)",
    "evaluation time    2.0 s",
    "checkpoint         none",
]


def rows(lines):
    """The lines of a table with single spaces."""
    return [" ".join(line.split()) for line in lines]


def test_the_table_without_evaluations():
    lines = module.summary_lines(RESULTS)
    assert lines[0] == lines[-1] == "-" * (18 + 42)
    assert rows(lines[1:-1]) == rows(PLAIN)
    assert lines[1] == "run" + " " * 17 + "runs/a"


def test_the_table_with_everything():
    more = {
        "updates": 40,
        "final": FINAL,
        "best": {"epoch": 2, "success_rate": None, "mean_return": 3.0, "return_std": 1.0},
        "recommended": {"words": "best by return", "note": "compare"},
        "checkpoint": "runs/a/best.pth",
    }
    lines = module.summary_lines({**RESULTS, **more})
    expected = [
        *PLAIN[:3],
        "epochs, env steps, updates 3, 300, 40",
        PLAIN[4],
        "success, final 50 % (epoch 3), return 12.5",
        "return, best 3 ± 1, epoch 2",
        *PLAIN[5:7],
        "checkpoint runs/a/best.pth",
        *("best by return", "compare"),
    ]
    assert rows(lines[1:13]) == rows(expected)
    assert lines[13] == "-" * (26 + 42)
    assert lines[14:] == [
        "deploy:",
        "    from imitate import policy_from_checkpoint",
        "    policy, _ = policy_from_checkpoint(ckpt_path='runs/a/best.pth'); policy.start_episode()",
        "    action = policy(obs)",
    ]
    more["recommended"]["note"] = None
    assert len(module.summary_lines({**RESULTS, **more})) == len(lines) - 1


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"episodes": 50}, "success, final 50 % (epoch 3, 50 episodes), return 12.5"),
        (
            {"episodes": 1, "success_rate_95": [0.364, 0.636]},
            "success, final 50 % (epoch 3, 1 episode, 95 % interval 36 - 64 %), return 12.5",
        ),
        (
            {"success_rate": None, "mean_return_95": [10, 15], "episodes": 2},
            "return, final 12.5 (95 % interval 10 - 15), epoch 3, 2 episodes",
        ),
    ],
)
def test_evaluations(entry, words):
    lines = module.summary_lines({**RESULTS, "final": {**FINAL, **entry}})
    assert words in rows(lines)


@pytest.mark.parametrize(
    ("algo", "rate", "advised"),
    [
        ("bc", 0.59, True),
        ("bc_vae", 0.0, True),
        ("bc", 0.6, False),
        ("bc", None, False),
        ("iql", 0.1, False),
    ],
)
def test_advice_after_a_policy_of_a_single_step(algo, rate, advised):
    results = {**RESULTS, "algo": algo, "final": {**FINAL, "success_rate": rate}}
    lines = module.summary_lines(results)
    assert (lines[-3] == "next: imitate diagnose runs/a ranks causes") == advised
    assert (f"wait or pause, where {algo} often fails" in lines[-2]) == advised
    assert not any(line.startswith("next") for line in module.summary_lines(results, advise=False))
    assert not any(line.startswith("next") for line in module.summary_lines(RESULTS))
    assert not any("next:" in line for line in module.summary_lines({**RESULTS, "algo": "bc"}))


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    def make(*names):
        run = RunFolder(tmp_path)
        run.checkpoints.mkdir(exist_ok=True)
        for name in names:
            (run.checkpoints / name).touch()
        return run

    return make


def history(*records):
    made = History(SimpleNamespace(metric="success_rate", enabled=False, target=None))
    for record in records:
        made.add(record)
    return made


def rollout(epoch, rate, mean, **more):
    return {
        "kind": "rollout",
        "epoch": epoch,
        "Rollout/Return": mean,
        **({} if rate is None else {"Rollout/Success_Rate": rate}),
        **{f"Rollout/{key}": value for key, value in more.items()},
    }


def test_every_kept_checkpoint_has_its_reason(folder):
    names = ("epoch_10.pth", "best_valid.pth", "last.pth", "best.pth", "epoch_9.pth", "epoch_x.pth")
    run = folder(*names, "best_return.pth", "other_3.pth")
    seen = history(
        rollout(1, 0.25, 9.0, Episodes=8.0),
        rollout(2, 0.5, 3.0, Episodes=8.0, Bounds_Kept=1.0),
        {"kind": "epoch", "epoch": 2, "Valid/Loss": 0.012345},
    )
    kept = module.kept_checkpoints(run, seen, 3)
    assert [(one.name, one.words) for one in kept] == [
        ("best.pth", "best by success rate (epoch 2, 50 % of 8 episodes, bounds kept)"),
        ("best_return.pth", "best by return (epoch 1, 9)"),
        ("last.pth", "the last (epoch 3)"),
        ("best_valid.pth", "best by validation loss (epoch 2, 0.01235)"),
        ("epoch_9.pth", "kept because of its epoch (epoch 9)"),
        ("epoch_10.pth", "kept because of its epoch (epoch 10)"),
    ]
    assert module.best_checkpoint(run) == run.checkpoints / "best.pth"
    found = module.recommendation(run, seen, 3)
    assert found["recommended"] == {
        **{"name": "best.pth", "epoch": 2, "words": kept[0].words, "note": None},
        "reason": "best by success rate: 50 % of 8 episodes, bounds kept",
    }
    assert [one["name"] for one in found["checkpoints"]] == [one.name for one in kept]


@pytest.mark.parametrize(
    ("names", "records", "words", "note"),
    [
        (["best.pth"], [], "kept as one of the best (epoch unknown)", None),
        (["best.pth"], [rollout(1, None, 4.0)], "best by return (epoch 1, 4)", None),
        (
            ["best.pth"],
            [rollout(1, 1.0, 4.0, Bounds_Kept=0.0)],
            "best by success rate (epoch 1, 100 %, BOUNDS NOT KEPT)",
            None,
        ),
        (
            ["last.pth"],
            [],
            "the last (epoch unknown)",
            "no episodes were evaluated: compare checkpoints with imitate eval in a simulator, or "
            "imitate compare on the robot",
        ),
        (
            ["best_valid.pth", "last.pth"],
            [{"kind": "epoch", "epoch": 1, "Valid/Loss": 0.5}],
            "the last (epoch unknown)",
            "best_valid.pth (epoch 1) has the lowest validation loss, which is a poor measure of "
            "success: compare checkpoints with imitate eval in a simulator, or imitate compare on the robot",
        ),
    ],
)
def test_the_recommended_checkpoint(folder, names, records, words, note):
    found = module.recommendation(folder(*names), history(*records), None)["recommended"]
    assert (found["words"], found["note"]) == (words, note)


def test_a_run_without_checkpoints(folder):
    run = folder("epoch_1.pth")
    assert module.best_checkpoint(run) is None
    nothing = {"recommended": None, "checkpoints": []}
    assert module.recommendation(run, history(), 1) == nothing
    assert module.draw_curves(run) is None
    run.metrics.write_text('{"kind": "rollout", "epoch": 1}\n')
    assert module.draw_curves(run) is None
    module.write_results(run, {"a": [1]})
    assert run.results.read_text() == '{\n  "a": [\n    1\n  ]\n}\n'


def test_results_have_absolute_paths(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = folder()
    module.write_results(run, {"run": "runs/a", "checkpoint": None, "epoch": 3})
    written = json.loads(run.results.read_text())
    assert written == {"run": f"{tmp_path}/runs/a", "checkpoint": None, "epoch": 3}
    module.write_results(run, {"checkpoint": "best.pth"})
    assert json.loads(run.results.read_text()) == {"checkpoint": f"{tmp_path}/best.pth"}


@pytest.mark.parametrize(
    ("shape", "half"),
    [
        ((480, 640, 3), (240, 320)),
        ((129, 100), (64, 64)),
        ((64, 131), (64, 65)),
        ((8, 8), (64, 64)),
    ],
)
def test_half_the_size_of_an_image(shape, half):
    assert smaller(shape) == half
