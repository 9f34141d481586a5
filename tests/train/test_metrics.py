import os
from copy import deepcopy

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from imitate import load_config
from imitate.errors import ConfigError
from imitate.train.metrics import Debug, EpochMeans, MetricsFile, NoiseScale, policy_stds
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_batch, tiny_config, tiny_run

SMALL = {"actor": {"net": {"gaussian": {"init_std": 0.3, "fixed_std": True}}}}


def test_the_noise_scale_of_two_gradients_by_hand():
    """|(3, 1) - (1, 1)|^2 / 2 = 2 is the noise, (3, 1) (1, 1) = 4 the square of the gradient: 8 * 2 / 4 samples."""
    scale = NoiseScale(8)
    scale.add(torch.tensor([3.0, 1.0]))
    scale.add(torch.tensor([1.0, 1.0]))
    assert scale.value() == 4.0
    assert scale.value() is None
    scale.add(torch.tensor([1.0, 0.0]))
    scale.add(torch.tensor([-1.0, 0.0]))
    assert scale.value() is None


def test_each_value_begins_anew():
    scale = NoiseScale(8)
    for _ in range(2):
        scale.add(torch.tensor([3.0, 1.0]))
        scale.add(torch.tensor([1.0, 1.0]))
        assert scale.value() == 4.0


def test_the_scale_does_not_depend_on_the_size_of_the_batches():
    """Samples have gradients of mean 1 and variance 9 in each of 4 numbers: the scale is 36 / 4 = 9 samples."""
    generator = torch.Generator().manual_seed(0)
    for size in (4, 64):
        scale = NoiseScale(size)
        for _ in range(4000):
            scale.add(1.0 + 3.0 / size**0.5 * torch.randn(4, generator=generator))
        assert scale.value() == pytest.approx(9.0, rel=0.1)


def test_gradients_are_those_before_clipping():
    scales = []
    for norm in (None, 1e-3):
        algo = tiny_algo("bc", train={"max_grad_norm": norm})
        debug = Debug(algo, 6)
        algo.set_train()
        before = deepcopy(algo.nets.state_dict())
        for seed in (1, 2):
            algo.nets.load_state_dict(before)
            batch = algo.process_batch_for_training(tiny_batch(algo, seed=seed))
            algo.train_on_batch(batch, 1)
        scales.append(debug.scalars()["Debug/Gradient_Noise_Scale/policy"])
    assert scales[0] == pytest.approx(scales[1], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "section", "std"),
    [
        ("ppo", {"net": {"init_std": 0.7}}, 0.7),
        ("sac", SMALL, 0.3),
        ("bc", {}, None),
        ("td3", {}, None),
    ],
)
def test_standard_deviations_of_the_policy(name, section, std):
    found = policy_stds(tiny_algo(name, algo=section), {"s": torch.zeros(5, 3)})
    if std is None:
        assert found is None
    else:
        assert torch.allclose(found, torch.tensor(std))


def test_only_tensorboard_gets_them(tmp_path):
    words = {"experiment": {"logging": {"log_tb": True, "debug": True}}}
    run = tiny_run(tmp_path, "iql", train={"num_epochs": 1}, **words)
    (events,) = run.glob("**/events*")
    seen = EventAccumulator(str(events), size_guidance={"histograms": 0})
    seen.Reload()
    assert {"Debug/Actions", "Debug/Rewards", "Debug/Policy_Std"} <= set(seen.Tags()["histograms"])
    assert "Debug/" not in (run / "metrics.jsonl").read_text()


def test_debug_needs_tensorboard():
    tree = tiny_config("bc").to_dict()
    tree["experiment"]["logging"] |= {"debug": True, "log_tb": False}
    with pytest.raises(ConfigError, match="debug writes only to TensorBoard"):
        load_config(tree)


def test_debug_shows_the_latest_batch():
    algo = tiny_algo("sac", algo=SMALL)
    debug = Debug(algo, 6)
    assert debug.histograms() == {} and debug.scalars() == {}
    batch = {"obs": {"s": torch.zeros(5, 3)}, "rewards": torch.ones(5), "more": torch.ones(5)}
    debug.add({**batch, "actions": torch.zeros(5, 1)})
    assert set(debug.histograms()) == {"Debug/Actions", "Debug/Rewards", "Debug/Policy_Std"}
    debug.add(batch)
    found = debug.histograms()
    assert set(found) == {"Debug/Rewards", "Debug/Policy_Std"}
    assert torch.equal(found["Debug/Rewards"], torch.ones(5))


def test_frames_of_a_batch_may_be_stacked_and_other_keys_are_left_out():
    algo = tiny_algo("sac", algo=SMALL)
    one = policy_stds(algo, {"s": torch.zeros(5, 3), "z": torch.zeros(5, 7)})
    assert torch.equal(policy_stds(algo, {"s": torch.zeros(5, 1, 3)}), one)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            '{"kind": "epoch", "epoch": 1, "x": 1e299, "y": 1e300, "z": "text"}',
            {"kind": "epoch", "epoch": 1, "x": 1e299},
        ),
        ('{"epoch": 2, "x": null, "on": true}', {"epoch": 2, "x": None, "on": True}),
        ('{"epoch": 1.0}', None),
        ('{"epoch": true}', None),
        ('{"x": 1}', None),
        ("[1]", None),
        ("{", None),
    ],
)  # fmt: skip
def test_lines_that_are_read(tmp_path, line, kept):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.path.write_text(f"{line}\n")
    assert metrics.read() == ([] if kept is None else [kept])
    metrics.append({"epoch": 3})
    last = metrics.read()[-1]
    assert last["epoch"] == 3 and last["time"] == round(last["time"], 3)


def test_without_observations_or_with_goals_no_deviation_is_shown():
    assert policy_stds(tiny_algo("sac"), {}) is None
    goal = tiny_algo("gciql", goal={"s": 3})
    assert policy_stds(goal, {"s": torch.zeros(5, 3)}) is None


def test_means_of_an_epoch():
    means = EpochMeans()
    assert means.means() == {}
    means.add({"Loss": torch.tensor(1.0, requires_grad=True), "Rate": 0.5})
    means.add({"Loss": 4.0})
    means.add({"Loss": torch.tensor(7.0), "Late": torch.tensor(2)})
    found = means.means()
    assert {key: float(value) for key, value in found.items()} == {
        "Loss": 4,
        "Rate": 0.5,
        "Late": 2,
    }
    assert all(v.dtype == torch.float64 and not v.requires_grad for v in found.values())
    state = means.state()
    assert state["counts"] == {"Loss": 3, "Rate": 1, "Late": 1} and state["sums"]["Loss"] == 12.0
    again = EpochMeans()
    again.load_state(state, torch.device("cpu"))
    for each in (again, means):
        each.add({"Loss": 8.0})
        assert each.means()["Loss"] == 5.0
    assert state["sums"]["Loss"] == 12.0 and state["counts"]["Loss"] == 3
    with refused("returned list: return a dict of values", error=ConfigError):
        means.add([1.0])
    with refused("returned 'x' of shape (2,): return single numbers", error=ConfigError):
        means.add({"x": torch.zeros(2)})


def test_lines_of_later_epochs_are_removed(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.read() == []
    file.truncate(1)
    assert not file.path.exists()
    lines = [
        '{"kind": "epoch", "epoch": 1, "x": 1.5, "text": "a", "none": null}',
        '{"kind": "rollout", "epoch": 2, "x": 2}',
        '{"kind": "epoch", "epoch": 3}',
        '{"kind": "epoch", "epoch": true}',
        '{"kind": "epoch", "epoch": 1.0}',
        '{"kind": "epoch"}',
        "[1]",
        '{"kind": "ep',
    ]
    file.path.write_text("\n".join(lines))
    kept = [{"kind": "epoch", "epoch": 1, "x": 1.5}, {"kind": "rollout", "epoch": 2, "x": 2}]
    found = [{key: v for key, v in record.items() if key != "none"} for record in file.read()]
    assert found == [*kept, {"kind": "epoch", "epoch": 3}]
    file.truncate(2)
    found = [{key: v for key, v in record.items() if key != "none"} for record in file.read()]
    assert found == kept and len(file.path.read_text().splitlines()) == 2


def test_a_long_run_is_read_in_bounded_memory(tmp_path):
    """130 MB of lines; the best evaluation and the last epoch are among those that are kept."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    filler = " " * 60_000
    with metrics.path.open("w") as file:
        file.write('{"kind": "rollout", "epoch": 1, "Rollout/Return": 5.0}\n')
        for epoch in range(1, 2302):
            file.write(f'{{"kind": "epoch", "epoch": {epoch},{filler}"Train/Loss": 1.0}}\n')
    assert metrics.path.stat().st_size > 2**27
    kept = [(record["kind"], record["epoch"]) for record in metrics.read()]
    assert kept[0] == ("rollout", 1) and kept[-1] == ("epoch", 2301)
    assert kept[1:-1] == [("epoch", epoch) for epoch in range(1, 2301, 8)]
    assert sum(1 for _ in metrics.records()) == 2302
    metrics.truncate(2)
    assert [record["epoch"] for record in metrics.read()] == [1, 1, 2]


def test_lines_that_are_too_long_or_no_utf8_are_skipped(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    long = b'{"epoch": 1,' + b" " * 2**17 + b'"x": 1}\n'
    metrics.path.write_bytes(long + b'{"epoch": 2}\n' + b'{"epoch": 3, "\xff": 1}\n{"epoch": 4}')
    assert metrics.read() == [{"epoch": 2}, {"epoch": 4}]


def test_a_pipe_is_not_waited_for(tmp_path):
    mkfifo = getattr(os, "mkfifo", None) or pytest.skip("this system has no named pipes")
    mkfifo(tmp_path / "metrics.jsonl")
    assert MetricsFile(tmp_path / "metrics.jsonl").read() == []
