"""The study of late chunks: its numbers by hand, what it keeps, what it draws."""

import json
import time

import numpy as np
import pytest

from benchmarks.studies import late_chunks, late_chunks_real_time
from benchmarks.studies.late_chunks import Cell, draw, jumps, measured, row


def numbers(policy, inference, latency_ms, success=(True, True, False), steps=(50, 60, 300)):
    cell = Cell(policy, inference, latency_ms, 8)
    some = {"at_borders": [0.5, 0.7, float("nan")], "within": [0.1, 0.2, 0.3]}
    return {**vars(cell), "success": list(success), "steps": list(steps), **some}


def test_jumps_at_borders_and_elsewhere():
    actions = np.zeros((6, 7))
    actions[:, 0] = [0, 0, 1, 1, 4, 4]
    actions[:, 6] = [1, -1, 1, -1, 1, -1]  # the gripper's do not count
    # The first chunk begins at step 1, the next ones at steps 2 and 4.
    borders = np.array([False, True, True, False, True, False])
    at, within = jumps(actions, borders)
    assert at == pytest.approx((1 + 3) / 2)
    assert within == pytest.approx(0.0)
    assert np.isnan(jumps(actions[:2], borders[:2])[0]), "no border"


def test_a_row():
    assert row(numbers("plain", "rtc", 100.0)) == (
        "| 100 ms | rtc | 8 | 2/3 | 21 - 94 % | 55 | 0.600 | 0.200 |"
    )


def test_kept_episodes_are_not_run_again_and_missing_ones_are_added(tmp_path, monkeypatch):
    cell = Cell("plain", "rtc", 100.0, 8)
    path = tmp_path / f"{cell.name}.json"
    path.write_text(json.dumps(numbers("plain", "rtc", 100.0)))
    none = tmp_path / "none.pth"
    assert measured(tmp_path, none, cell, 3)["steps"] == [50, 60, 300]
    assert measured(tmp_path, none, cell, 2)["steps"] == [50, 60]

    class Fake:
        def __init__(self, checkpoint, cell):
            self.left = 11

        def play(self, seeds):
            self.left -= len(seeds)
            if self.left < 0:
                raise KeyboardInterrupt
            return [{"success": True, "steps": k, "at_borders": 0.1, "within": 0.1} for k in seeds]

        def close(self):
            pass

    monkeypatch.setattr(late_chunks, "Player", Fake)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, none, cell, 15)
    assert json.loads(path.read_text())["steps"] == [50, 60, 300, *range(3, 13)]
    resumed = measured(tmp_path, none, cell, 15)
    assert resumed["steps"] == [50, 60, 300, *range(3, 15)]
    assert (resumed["policy"], len(resumed["success"])) == ("plain", 15)


def test_the_picture(tmp_path):
    cells = [
        numbers(policy, way, latency)
        for policy, way in late_chunks.WAYS
        for latency in (0.0, 200.0)
    ]
    draw(cells, tmp_path / "deep" / "picture.png")
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_of_the_study_in_real_time():
    def episode(success, steps, held, failure=None):
        report = {"steps": steps, "held": {"nothing is planned": held}, "long_gaps": 2}
        return {
            "success": success,
            "report": None if failure else report,
            "failure": failure,
        }

    episodes = [episode(True, 50, 3), episode(True, 60, 1), episode(False, 0, 0, "late")]
    cell = {"policy": "plain", "join": "blend", "latency_ms": 100.0, "episodes": episodes}
    assert late_chunks_real_time.row(cell) == (
        "| 100 ms | blend | 2/3 | 21 - 94 % | 57 | 4 | 4 | 1 |"
    )


def test_a_slow_server_is_late_once_a_prediction(tmp_path):
    from imitate.deploy.client import RemotePolicy
    from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
    from tests.deploy.test_served import observations, policy_of

    policy = policy_of("flow_policy/flow_policy")
    meta = {"env_name": "Stack", "type": 1, "env_kwargs": {"control_freq": 20}}
    limits = {"action_low": [-1.0] * 7, "action_high": [1.0] * 7}
    path = tmp_path / "policy.pth"
    save_checkpoint(
        checkpoint_dict(policy.algo, env_metadata=meta, shape_metadata=limits, train_state={}), path
    )
    with late_chunks_real_time.slow_server(path, 400.0) as (url, env_meta):
        assert env_meta["env_name"] == "Stack"
        with RemotePolicy(url, timeout_s=30) as remote:
            seen = observations(policy, 3)
            remote.predict_chunk(seen)
            began = time.monotonic()
            remote.predict_chunk(seen)
            assert time.monotonic() - began > 0.4
            remote.start_episode()
            remote(seen[0])
            assert remote.timing["infer_ms"] > 400
            remote(seen[1])  # from the plan
            assert remote.timing["infer_ms"] < 400
