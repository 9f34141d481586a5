"""Observations that equal the actions of the same step, or of the one before."""

import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.quality.doctor import observations
from imitate.data.quality.doctor.observations import ActionCopies, useless_observations
from imitate.data.quality.doctor.survey import DemoSteps
from tests.demo_files import episode, write_demos


def actions(steps):
    return np.arange(2.0 * steps).reshape(steps, 2) / 100


def copies(values, given, key="obs/s"):
    found = ActionCopies()
    found.see(DemoSteps("demo_0", 0, {"actions": given, key: values}))
    return found


def before(given):
    return np.concatenate([np.full((1, 2), 9.0), given[:-1]])


def wrong_at(values, count):
    changed = values.copy()
    changed[5 : 5 + count] += 1.0
    return changed


@pytest.mark.parametrize(
    ("values", "given", "shift"),
    [
        (actions(11), actions(11), 0),
        (actions(10), actions(10), None),  # nine changes are too few
        (before(actions(12)), actions(12), 1),
        (before(actions(11)), actions(11), None),
        (actions(101) + 5e-6, actions(101), 0),
        (actions(101) + 1e-3, actions(101), None),
        (wrong_at(actions(101), 2), actions(101), 0),
        (wrong_at(actions(101), 3), actions(101), None),
        (np.ones((99, 2)), np.ones((99, 2)), None),  # actions that rest
        (actions(99)[:, :1], actions(99), None),
        (actions(99), (100 * actions(99)).astype(int), None),
    ],
)
def test_a_copy(values, given, shift):
    assert copies(values, given).copies() == ({} if shift is None else {"obs/s": shift})


def test_only_observations_are_copies():
    assert copies(actions(99), actions(99), "steps/s").copies() == {}
    found = ActionCopies()
    found.see(DemoSteps("demo_0", 0, {"obs/s": actions(99)}))
    assert found.copies() == {}


def test_steps_of_several_pieces_count_together():
    found = ActionCopies()
    for _ in range(2):
        found.see(DemoSteps("demo_0", 0, {"actions": actions(6), "obs/s": actions(6)}))
    assert found.copies() == {"obs/s": 0}


@pytest.mark.parametrize(
    ("key", "values", "level", "words"),
    [
        ("obs/s", actions(20), "warning", "is the action of the same step: a policy can copy it"),
        (
            "obs/s",
            before(actions(20)),
            "info",
            "of the step before, as in data whose actions are the next",
        ),
        ("obs/Target", before(actions(20)), "warning", "of the step before: a policy can copy it"),
    ],
)
def test_findings(key, values, level, words):
    (finding,) = copies(values, actions(20), key).findings()
    assert (finding.code, finding.level.value) == ("action_copy", level)
    assert words in finding.what
    assert (finding.remedy is not None) == (level == "warning")
    assert finding.remedy is None or finding.remedy.drop_keys == [key]
    assert [place.key for place in finding.places] == [key]


def test_reasons_by_key(tmp_path):
    obs = {
        "command": actions(20),
        "last_action": before(actions(20)),
        "state": before(actions(20)),
        "still": np.full((20, 1), 3.0),
        "good": np.random.default_rng(0).normal(size=(20, 2)),
    }
    path = write_demos(tmp_path / "a.hdf5", [episode(20, obs, actions(20))])
    with DatasetFile(path) as file:
        found = useless_observations(file, ["demo_0"], list(obs))
        assert useless_observations(file, ["demo_0"], ["good"]) == {}
    assert found["command"] == "it is the action of the same step"
    assert found["last_action"] == "it is the action of the step before"
    assert found["still"] == "the same in all steps"
    assert list(found) == ["command", "last_action", "still"]


class Arrays:
    """A file that notes which steps are read."""

    def __init__(self, **arrays):
        self.arrays, self.seen = {key.replace("__", "/"): x for key, x in arrays.items()}, []

    def length(self, demo):
        return len(self.arrays["actions"])

    def shape(self, demo, name):
        return self.arrays[name].shape

    def dtype(self, demo, name):
        return self.arrays[name].dtype

    def read(self, demo, name, start, stop):
        self.seen.append((name, start))
        return self.arrays[name][start:stop]


@pytest.mark.parametrize(
    ("most", "starts"), [(24 * 8, [0, 8, 16]), (24 * 8 - 1, [0, 7, 14]), (1, list(range(20)))]
)
def test_a_long_demo_is_read_in_pieces(monkeypatch, most, starts):
    monkeypatch.setattr(observations, "PIECE_BYTES", most)
    file = Arrays(actions=actions(20), obs__s=actions(20)[:, :1])  # 16 and 8 bytes for a step
    assert useless_observations(file, ["d"], ["s"]) == {}
    assert [start for name, start in file.seen if name == "actions"] == starts
    assert len(file.seen) == 2 * len(starts)
    copied = Arrays(actions=actions(20), obs__s=actions(20))
    found = {"s": "it is the action of the same step"} if most > 1 else {}
    monkeypatch.setattr(observations, "PIECE_BYTES", most * 32 // 24)
    assert useless_observations(copied, ["d"], ["s"]) == found
    monkeypatch.setattr(observations, "PIECE_BYTES", 3)
    small = Arrays(actions=np.arange(7, dtype=np.uint8), obs__s=np.zeros((7, 0)))
    assert useless_observations(small, ["d"], ["s"]) == {}
    assert [start for name, start in small.seen if name == "actions"] == [0, 3, 6]
