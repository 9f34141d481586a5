"""Numbers in words, exactly."""

import math

import pytest

from imitate.system.text import (
    DownloadBar,
    counted,
    interval_text,
    mean_text,
    rate_text,
    significant,
)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: counted(1, "demo"), "1 demo"),
        (lambda: counted(0, "demo"), "0 demos"),
        (lambda: counted(2, "demo"), "2 demos"),
        (lambda: rate_text(0.956), "96 %"),
        (lambda: rate_text(0.956, (0.87, 0.99)), "96 % (87 - 99)"),
        (lambda: rate_text(0.956, (0.87, 0.99), 1), "95.6 % (87.0 - 99.0)"),
        (lambda: rate_text(0.5, (None, 0.99)), "50 %"),
        (lambda: rate_text(0.5, (0.1, None)), "50 %"),
        (lambda: mean_text(None), "not finite"),
        (lambda: mean_text(math.nan, 1.0), "not finite"),
        (lambda: mean_text(math.inf), "not finite"),
        (lambda: mean_text(172.04), "172"),
        (lambda: mean_text(172.04, 41.3), "172 ± 41"),
        (lambda: mean_text(172.04, None, (160.01, 184)), "172 (160 - 184)"),
        (lambda: mean_text(172.04, 0.0, (160.01, 184), "95 %: "), "172 ± 0 (95 %: 160 - 184)"),
        (lambda: mean_text(1, 2, (None, 3)), "1 ± 2"),
        (lambda: interval_text((-12, 3)), "-12 to 3"),
        (lambda: interval_text((0, 3)), "0 - 3"),
        (lambda: interval_text((1, None)), None),
        (lambda: interval_text((None, 1)), None),
        (lambda: interval_text(None), None),
        (lambda: significant(123456, 4), "123500"),
        (lambda: significant(999999, 7), "999999"),
        (lambda: significant(1e6, 2), "1e+06"),
        (lambda: significant(-123456, 2), "-120000"),
        (lambda: significant(-1e6, 2), "-1e+06"),
        (lambda: significant(0.00012345, 2), "0.00012"),
        (lambda: significant(1.5, 4), "1.5"),
    ],
)
def test_words(made, words):
    assert made() == words


def test_bars_of_downloads(capsys):
    with DownloadBar("file", disable=False) as bar:
        bar.received(3, 10)
        bar.received(4, 10)
        assert (bar.n, bar.total, bar.unit, bar.unit_scale, bar.desc) == (7, 10, "B", True, "file")
    with DownloadBar("file") as bar:  # this is not a terminal
        assert bar.disable
    assert "7.00/10.0" in capsys.readouterr().err
