"""Console of a run: durations and rates in words, the forecast, lines without a bar."""

import io
from types import SimpleNamespace

import pytest

from imitate.train import console
from imitate.train.console import ADVICE, Console, Forecast, duration, images_on_cpu, rate


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (90 * 60 + 59, "1 h 30 min"),
    ],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("per_second", "words"), [(0.2149, "0.21"), (9.96, "10"), (3.51, "3.5"), (10, "10"), (1234, "1234")]
)  # fmt: skip
def test_rates(per_second, words):
    assert rate(per_second) == words


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the console measures."""
    now = [0.0]
    monkeypatch.setattr(console.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def forecast(clock, steps, seconds, total=1003, **how):
    made = Forecast(total, "updates", **how)
    assert made.line(3) is None  # the first step is not measured
    clock[0] += seconds
    return made, made.line(3 + steps)


@pytest.mark.parametrize(
    ("steps", "seconds", "words"),
    [
        (2, 9.0, None),  # too few steps
        (3, 1.9, None),  # too little time
        (3, 3.0, "about 16 min 37 s for this training: 997 updates at 1 per s, without rollouts"),
        (4, 2.0, "about 8 min 18 s for this training: 996 updates at 2 per s"),
        (940, 940.0, "about 1 min 00 s for this training: 60 updates"),
        (941, 941.0, None),  # not worth a line
    ],
)
def test_a_forecast(clock, steps, seconds, words):
    _, line = forecast(clock, steps, seconds)
    assert (line is None) if words is None else line.startswith(words)


def test_a_forecast_is_said_once_and_waits_until_it_is_known(clock):
    made, line = forecast(clock, 2, 9.0)
    assert line is None and made.line(6) is not None
    assert made.line(7) is None
    made, line = forecast(clock, 941, 941.0)
    assert line is None and made.line(945) is None


@pytest.mark.parametrize(
    ("steps", "seconds", "total", "advised"),
    [
        (4, 5.0, 1003, True),  # 20 min 45 s
        (4, 4.0, 1203, False),  # 1196 s
        (4, 12.0, 103, False),
        (4, 12.1, 103, True),  # more than 3 s for a step
    ],
)
def test_slow_trainings_on_images_are_advised(clock, steps, seconds, total, advised):
    for on_cpu in (True, False):
        _, line = forecast(clock, steps, seconds, total, images_on_cpu=on_cpu)
        assert line.endswith(ADVICE) == (advised and on_cpu)


def test_without_a_terminal_a_line_is_written_every_half_minute(clock, tmp_path):
    stream = io.StringIO()
    made = Console(stream, log=tmp_path / "log.txt")
    assert not made.interactive
    for clock[0] in (29.9, 30.0, 59.0, 60.0):
        made.pulse(lambda: f"at {clock[0]:g}")
    assert stream.getvalue() == "at 30\nat 60\n"
    assert (tmp_path / "log.txt").read_text() == "at 30\nat 60\n"
    made.start_bar(10, 0)
    made.advance(5)
    made.close_bar()  # without a bar
    assert stream.getvalue() == "at 30\nat 60\n"


def test_a_quiet_console_says_only_what_must_be_said(clock, tmp_path):
    stream = io.StringIO()
    made = Console(stream, quiet=True, log=tmp_path / "log.txt")
    made.say("a")
    made.say("b", always=True)
    clock[0] = 99.0
    made.pulse(lambda: "c")
    assert stream.getvalue() == "b\n"
    assert (tmp_path / "log.txt").read_text() == "a\nb\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar_and_no_pulse(clock):
    stream = Terminal()
    made = Console(stream)
    made.start_bar(10, 2)
    made.words = "loss 1"
    clock[0] = 99.0
    made.pulse(lambda: "pulse")
    made.advance(5)
    made.say("a line")
    made.advance(9)  # within 0.2 s, so it is drawn at the end
    made.close_bar()
    made.close_bar()
    shown = stream.getvalue()
    assert "pulse" not in shown and "a line\n" in shown
    assert "2/10" in shown and "loss 1" in shown and "9/10" in shown
    assert not Console(stream, quiet=True).interactive


def test_a_bar_is_drawn_five_times_a_second_at_most(clock, monkeypatch):
    drawn = []

    class Bar:
        def __init__(self, *, total, initial, file, unit, dynamic_ncols):
            self.n = initial
            drawn.append(("begin", total, initial, unit, dynamic_ncols))

        def set_postfix_str(self, words, refresh):
            drawn.append((words, refresh))

        def update(self, steps):
            self.n += steps
            drawn.append(self.n)

        def close(self):
            drawn.append("end")

    monkeypatch.setattr("imitate.system.text.ProgressBar", Bar)
    made = Console(Terminal())
    made.start_bar(10, 2)
    made.words = "w"
    for clock[0], done in ((5.0, 3), (5.19, 4), (5.21, 5), (5.4, 6), (5.405, 7)):
        made.advance(done)
    made.close_bar()
    made.close_bar()
    made.advance(9)
    seen = [("w", False), 3, ("w", False), 5, 7, "end"]
    assert drawn == [("begin", 10, 2, "step", True), *seen]


@pytest.mark.parametrize(
    ("kinds", "device", "found"),
    [
        (["low_dim", "rgb"], "cpu", True),
        (["low_dim", "depth"], "cpu", True),
        (["low_dim"], "cpu", False),
        (["rgb"], "cuda", False),
    ],
)
def test_images_are_slow_without_a_gpu(kinds, device, found):
    of_all = SimpleNamespace(modalities_of_all=lambda: dict(enumerate(kinds)))
    setup = SimpleNamespace(
        config=SimpleNamespace(observation=of_all), device=SimpleNamespace(type=device)
    )
    assert images_on_cpu(setup) == found


class Flushed(io.StringIO):
    """Counts flushes."""

    flushes = 0

    def isatty(self):
        return True

    def flush(self):
        self.flushes += 1


class Bar:
    """Notes its calls."""

    made = ()

    def __init__(self, **how):
        self.how, self.n, self.calls = how, how["initial"], []
        Bar.made += (self,)

    def __getattr__(self, name):
        return lambda *given, **how: self.calls.append((name, *given, *how.values()))

    def update(self, count):
        self.calls.append(("update", count))
        self.n += count


def test_a_bar_from_its_start_to_its_end(clock, monkeypatch):
    Bar.made = ()
    monkeypatch.setattr("imitate.system.text.ProgressBar", Bar)
    made = Console(Flushed())
    assert made.words == "" and made.interactive
    made.advance(3)
    made.start_bar(10, 2)
    how = {"total": 10, "initial": 2, "file": made.stream, "unit": "step", "dynamic_ncols": True}
    assert [bar.how for bar in Bar.made] == [how]
    made.close_bar()
    assert Bar.made[0].calls == [("update", 0), ("close",)]
    made.close_bar()
    made.start_bar(10, 2)
    bar = Bar.made[1]
    clock[0] = 0.2
    made.advance(4)
    assert bar.calls == []
    clock[0], made.words = 0.25, "loss 1"
    made.advance(5)
    clock[0] = 0.44
    made.advance(6)
    assert bar.calls == [("set_postfix_str", "loss 1", False), ("update", 3)]
    flushed = made.stream.flushes
    made.say("hello")
    assert bar.calls[2:] == [("clear",), ("refresh",)] and made.stream.flushes == flushed + 1
    made.start_bar(20, 6)
    assert bar.calls[4:] == [("update", 1), ("close",)] and len(Bar.made) == 3
