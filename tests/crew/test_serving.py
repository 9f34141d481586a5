"""Limits after which a worker counts as hung, in virtual time."""

import multiprocessing

import pytest

from imitate.crew.backend import POLL_S, Limits
from imitate.crew.serving import HangDetector, Pulse, unpickled
from imitate.system import clock
from imitate.system.processes import MAKE, MAKE_FACTOR

NONE = Limits(call_s=None, quiet_s=None, start_s=None)


def test_a_pulse_has_the_call_and_the_number_of_beats():
    pulse = Pulse(multiprocessing)
    assert pulse.read() == ("", 0)
    pulse("step()")
    assert pulse.read() == ("step()", 1)
    pulse("a" * 40)
    assert pulse.read() == ("a" * 31, 2)


def verdicts(limits, looks, pulse):
    """Look at a worker every half of a second; ``looks`` are a beat's call each, or None without a beat."""
    watch, found = HangDetector(pulse), []
    for call in looks:
        clock.sleep(POLL_S)
        if call is not None:
            pulse(call)
        found.append(watch.verdict(limits))
    return found


@pytest.mark.parametrize(
    ("limits", "looks", "words"),
    [
        ({"start_s": 1.0}, [None] * 4, "its process did not begin within 1 s"),
        ({"quiet_s": 1.0}, ["", None, None, None], "its process reported nothing for 1 s"),
        ({"call_s": 1.0}, ["step()", None, None, None], "step() did not return within 1 s"),
        ({"item_s": 1.5}, ["a", "b", "", "c"], "it took longer than 1.5 s"),
    ],
)
def test_a_limit_ends_what_takes_longer(virtual_time, limits, looks, words):
    """The first look only sees the beats; of the three half seconds after it the last is beyond 1 s."""
    limits = Limits(**{**vars(NONE), **limits})
    assert verdicts(limits, looks, Pulse(multiprocessing)) == [None, None, None, words]
    assert verdicts(NONE, looks, Pulse(multiprocessing)) == [None] * 4


def test_beats_and_other_limits_do_not_end_it(virtual_time):
    calls = ["a", None, "b", None, "c", None]
    assert verdicts(Limits(call_s=1.0), calls, Pulse(multiprocessing)) == [None] * 6
    quiet = Limits(call_s=None, quiet_s=0.5)  # within a call only its own limit counts
    assert verdicts(quiet, ["a", *[None] * 5], Pulse(multiprocessing)) == [None] * 6


def test_making_an_environment_may_take_five_times_as_long(virtual_time):
    found = verdicts(Limits(call_s=0.5), [MAKE, *[None] * 6], Pulse(multiprocessing))
    assert found[:6] == [None] * 6 and found[6] == f"{MAKE} did not return within 2.5 s"
    assert MAKE_FACTOR == 5.0


def test_a_pause_of_this_process_is_no_hang_of_the_other(virtual_time):
    pulse = Pulse(multiprocessing)
    watch, limits = HangDetector(pulse), Limits(call_s=1.5, item_s=2.5)
    pulse("step()")
    clock.sleep(0.25)
    assert watch.verdict(limits) is None
    clock.sleep(1000.0)  # it counts as one second
    assert watch.verdict(limits) is None
    clock.sleep(0.5)
    assert watch.verdict(limits) is None
    clock.sleep(0.25)
    assert watch.verdict(limits) == "step() did not return within 1.5 s"
    watch.restart()
    clock.sleep(0.25)
    assert watch.verdict(limits) is None


def test_a_message_that_cannot_be_read_is_a_loss():
    loss = unpickled(b"no pickle")
    assert loss.reason.startswith("its result cannot be read (UnpicklingError: ")
    assert (loss.died, loss.begun, loss.error) == (False, True, None)
