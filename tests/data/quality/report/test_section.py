"""Words of the report's numbers."""

import pytest

from imitate.data.quality.report.section import ReportSection, Table, number, percent, size


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0.123456, "0.1235"), (-2.0, "−2"), (123456.0, "1.235e+05"), (1e-5, "1e−05")],
)
def test_numbers(value, words):
    assert number(value) == words


def test_digits_are_chosen():
    assert number(0.123456, 2) == "0.12"


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_700, "1 MB"),
        (2_500_000, "2.5 MB"),
        (3e9, "3 GB"),
        (1e12, "1 TB"),
        (5e15, "5e+03 TB"),
    ],
)
def test_sizes(num_bytes, words):
    assert size(num_bytes) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0"),
        (0.0009, "<\u00a00.1"),
        (0.001, "0.1"),
        (0.5, "50"),
        (0.1234, "12.3"),
        (0.999, "99.9"),
        (0.9991, ">\u00a099.9"),
        (1.0, "100"),
    ],
)
def test_percent(share, words):
    assert percent(share) == f"{words}\u00a0%"


def test_a_section_is_empty_and_the_first_column_of_a_table_is_text():
    section = ReportSection("a", "A")
    assert not section.legend and section.figures is None and section.table is None
    assert Table(["a"], []).left == 1
