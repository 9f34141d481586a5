"""The scale model on small numbers, worked out by hand."""

from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks import scale_model as model
from benchmarks.scale_model import Inputs

# 0.03 s a step and 0.02 s a call: 20 steps/s a collector.
SMALL = Inputs(
    env_s=0.03,
    act_s=0.02,
    reset_s=0.5,
    start_s=4.0,
    updates_s=100.0,
    weights_bytes=5e6,
    obs_bytes=960.0,
    action_bytes=40.0,
    batch=10,
    chunk_steps=40,
    link_bytes_s=10e6,
    cores_per_node=4,
    call_s=0.001,
    central_item_s=0.0001,
)
FIGURES = {
    "env_s": 0.004,
    "reset_s": 0.3,
    "image_env_s": 0.08,
    "image_reset_s": 0.5,
    "act_s": 0.0005,
    "update_s": 0.02,
    "start_s": 6.0,
    "weights_bytes": 300_000,
}


def test_collection():
    assert model.collected(SMALL, 3) == pytest.approx(60)
    # A request takes 1.1 ms with one observation, 1.8 ms with eight; the link carries 10,000 observations/s.
    assert model.collected_centrally(SMALL, 1000) == pytest.approx(1 / 0.0011)
    assert model.collected_centrally(SMALL, 1000, servers=2, envs_per_request=8) == pytest.approx(
        2 * 8 / 0.0018
    )
    assert model.collected_centrally(SMALL, 6) == pytest.approx(200)  # its cores: 6 / 0.03
    full = replace(SMALL, call_s=0.0, central_item_s=1e-6)
    assert model.collected_centrally(full, 1000) == pytest.approx(10_000)


def test_a_learner_is_saturated():
    # 100 updates/s, one in two steps: 200 steps/s, which ten collectors make.
    assert model.saturating(SMALL, 0.5) == pytest.approx(10)
    assert [model.trained(SMALL, n, 0.5) for n in (5, 10, 20)] == pytest.approx([100, 200, 200])


def test_weights_travel_once_to_each_machine():
    # 9 collectors on 3 machines: 3 copies of half a second; 9 copies without a store.
    assert model.least_push_interval(SMALL, 9) == pytest.approx(1.5)
    assert model.least_push_interval(SMALL, 9, copy_per_node=False) == pytest.approx(4.5)


def test_staleness_as_worked_out_and_as_simulated():
    # A chunk takes 2 s, half a push interval of 4 s are 2 s, the transfer half a second.
    assert model.age_s(SMALL, 4.0) == pytest.approx(4.5)
    assert model.most_stale(SMALL, 4.0) == pytest.approx(600)
    mean, most = model.simulated_staleness(SMALL, 4, 4.0, seconds=200.0)
    assert mean == pytest.approx(100 * 4.5, rel=0.1)
    assert 600 * 0.9 <= most <= 600 + 100 * 0.5 + 1  # and the transfer
    # Three machines and a push each second: the link is full, and weights get older and older.
    full = model.simulated_staleness(SMALL, 12, 1.0, seconds=100.0)
    assert full[0] < model.simulated_staleness(SMALL, 12, 1.0, seconds=200.0)[0]


def test_evaluation():
    # An episode of 10 steps takes 1 s; 7 episodes on 3 workers are 3 waves.
    assert model.evaluated_s(SMALL, 3, 7, 10) == pytest.approx(4 + 3)
    # Ten evaluations of 7 with workers of their own, or one queue of 70: 24 waves.
    assert model.evaluated_s(SMALL, 3, 70, 10, pools=10) == pytest.approx(70)
    assert model.evaluated_s(SMALL, 3, 70, 10) == pytest.approx(28)


def test_replay_buffer():
    # A sample: twice 960 bytes and 40; ten a batch, 100 batches/s; the link carries 10 MB/s.
    assert model.sample_bytes_s(SMALL) == pytest.approx(1.96e6)
    assert model.remote_updates_s(SMALL) == pytest.approx(10e6 / 19_600)
    assert model.stored_gb(SMALL, 1e6) == pytest.approx(1.0)


def test_tables_and_picture(tmp_path):
    made = {title.split(",")[0]: rows for title, _, rows in scale.tables(FIGURES)}
    assert made["Collection"][0][1] == pytest.approx(1 / 0.0045)
    busy = {row[0]: row[1] for row in made["Collectors that keep a learner busy"]}
    assert busy["states, one core"] == pytest.approx(50 * 0.0045)
    for title, header, rows in scale.tables(FIGURES):
        assert all(len(row) == len(header) for row in rows), title
        assert len(scale.markdown(title, header, rows).splitlines()) == len(rows) + 5
    scale.draw(FIGURES, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


def test_lines_of_the_picture():
    lines = scale.speed_ups(FIGURES)
    assert {label: of(1) for label, of in lines.items()} == dict.fromkeys(lines, pytest.approx(1))
    matrix = lines["evaluation: 100 checkpoints x 10 tasks x 50"]
    # 50,000 episodes of 0.75 s, and 6 s until a worker begins.
    assert matrix(1000) == pytest.approx((6 + 37_500) / (6 + 37.5))
    # 1,000 updates/s against 222 steps/s of a collector.
    assert lines["SAC from states, GPU, 1 update a step"](1024) == pytest.approx(4.5)
