"""Steps by hand, what they read, and a network of the user that is written so."""

import sys
import types

import pytest
import torch
from torch import nn

from imitate.models.containers import Sequential
from imitate.system.trust import VARIABLE, trust
from tests.tiny import tiny_algo, tiny_batch


def times(factor):
    return lambda x: factor * x


def test_steps_in_a_row_and_their_numbers():
    assert Sequential(times(2), times(-3))(5) == -30
    assert Sequential(times(2), times(-3), output=("1", "0", "input"))(5) == (-30, 10, 5)


def test_results_are_read_by_path():
    """a = 2 x.p = 6; b = -x.q.r = -5; c = a - b = 11; d = 10 c = 110, which nothing names."""
    net = Sequential(
        a=("input.p", times(2)),
        b=("input.q.r", times(-1)),
        c=(("a", "b"), lambda both: both[0] - both[1]),
        d=times(10),
        e=({"one": "c", "two": "input.q"}, lambda x: x["one"] + x["two"]["r"]),
        output={"all": ("d", "e"), "shape": "input.s.shape"},
    )
    found = net({"p": 3, "q": {"r": 5}, "s": torch.zeros(2, 4)})
    assert found == {"all": (110, 16), "shape": (2, 4)}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"a": ("b", times(1)), "b": times(1)}, "'a' reads 'b', but the earlier results are input"),
        ({"a": 3}, "step 'a' is 3: give a function"),
        (
            {"a": times(1), "output": ("a", "c")},
            "'output' reads 'c', but the earlier results are input, a",
        ),
    ],
)
def test_what_cannot_work_is_refused(steps, words):
    with pytest.raises(ValueError, match=words):
        Sequential(**steps)


def test_a_network_of_the_user_is_written_so_and_learns(monkeypatch):
    module = types.ModuleType("wired_nets")
    module.trunk = lambda shapes, ac_dim: Sequential(
        s=("input.s", nn.Linear(2, 3)),
        t=("input.t", nn.Linear(1, 4)),
        joined=(("s", "t"), lambda parts: torch.cat(parts, -1)),
    )
    monkeypatch.setitem(sys.modules, "wired_nets", module)
    monkeypatch.setenv(VARIABLE, "")
    trust("wired_nets:trunk")
    networks = {"networks": {"encoder": "wired_nets:trunk"}}
    algo = tiny_algo("bc", obs={"s": 2, "t": 1}, action=2, algo=networks)
    (net,) = [net for net in algo.nets.modules() if isinstance(net, Sequential)]
    before = {name: weight.clone() for name, weight in net.named_parameters()}
    assert [*before] == ["nets.s.weight", "nets.s.bias", "nets.t.weight", "nets.t.bias"]
    algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo)), 1)
    assert not any(torch.equal(before[name], weight) for name, weight in net.named_parameters())
