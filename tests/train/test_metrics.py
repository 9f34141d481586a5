import torch

from imitate.train.metrics import EpochMeans, MetricsFile


def test_means_over_the_steps_that_have_a_key():
    means = EpochMeans()
    means.add({"Loss": torch.tensor(1.0), "rare": torch.tensor(5.0)})
    means.add({"Loss": torch.tensor(2.0)})
    assert means.means() == {"Loss": torch.tensor(1.5), "rare": torch.tensor(5.0)}


def test_what_is_added_is_copied():
    means, value = EpochMeans(), torch.tensor(1.0)
    means.add({"Loss": value})
    value.fill_(100.0)
    means.add({"Loss": torch.tensor(3.0)})
    assert float(means.means()["Loss"]) == 2.0


def test_means_go_on_from_their_state():
    first, second = EpochMeans(), EpochMeans()
    first.add({"Loss": torch.tensor(0.1)})
    second.load_state(first.state(), torch.device("cpu"))
    for means in (first, second):
        means.add({"Loss": torch.tensor(0.2)})
    assert first.means() == second.means()
    assert first.means()["Loss"].dtype == torch.float64


def test_lines_are_appended_read_and_cut_back(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    metrics.truncate(3)
    for epoch in (1, 2, 3):
        metrics.append({"kind": "epoch", "epoch": epoch, "Train/Loss": epoch / 3})
    metrics.append({"kind": "rollout", "epoch": 1, "Rollout/Return": float("nan")})
    with metrics.path.open("a") as file:
        file.write('{"kind": "epoch", "epo')
    assert [record["epoch"] for record in metrics.read()] == [1, 2, 3, 1]
    assert metrics.read()[3]["Rollout/Return"] is None
    metrics.truncate(1)
    records = metrics.read()
    assert [(record["kind"], record["epoch"]) for record in records] == [
        ("epoch", 1),
        ("rollout", 1),
    ]
    assert records[0]["Train/Loss"] == 1 / 3
    assert metrics.path.read_text().endswith("\n")


def test_sums_of_a_run_on_the_cpu_become_those_of_a_device_without_float64():
    means = EpochMeans()
    means.add({"Loss": torch.tensor(2.0)})
    resumed = EpochMeans()
    resumed.load_state(means.state(), torch.device("meta"))  # any that is not the CPU
    assert means.sums["Loss"].dtype == torch.float64
    assert resumed.sums["Loss"].dtype == torch.float32
