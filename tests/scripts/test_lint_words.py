"""The program that finds stilted language: an example of each kind. The lint step runs it on all files."""

import pytest

from tests.loading import load

lint = load("scripts/lint_words.py")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""What a person would write."""', "What"),
        ('"""Who acts."""', "Who"),
        ('def f():\n    """Whether it runs."""', "Whether"),
        ('"""Those that were recorded."""', "Those"),
        ('"""That of the file."""', "That of"),
        ('"""Of the policy near 0."""', "Of the"),
        ("x = 1  # the gap is told", "told"),
        ('"""A.\n\nEverything lies in a file."""', "lies"),
        ('raise ValueError(f"{name} rests")', "rests"),
        ('Option(help="None: there is none")', "there is none"),
        ('"""Compute what the critics are to say."""', "what the critics are to say"),
    ],
)
def test_each_kind_is_found_in_code(source, words):
    ((line, found, advice),) = lint.findings(lint.texts_of_module(source))
    assert words in found and advice
    assert line == 1 + source.partition(words)[0].count("\n")


@pytest.mark.parametrize(
    "source",
    [
        'told = "what lies beyond"',
        '"""Args:\n    told: a vector; None if there is none."""',
        "rests = 1",
    ],
)
def test_names_and_data_are_left_alone(source):
    assert list(lint.findings(lint.texts_of_module(source))) == []


def test_pages_are_read_without_code():
    page = "It `lies`.\n\n    it lies\n\n```bash\nit lies\n```\nIt lies.\n"
    assert [line for line, _, _ in lint.findings(lint.texts_of_page(page))] == [8]


def test_wide_code_of_a_page_is_found():
    wide, long = "a " * 41, f"imitate --set '{'a ' * 40}'"
    blocks = {"bash": wide, "json": "x", "text": wide, "python": long}
    page = "".join(f"```{kind}\n{code}\n```\n" for kind, code in blocks.items())
    assert list(lint.wide_code(page)) == [2]
    assert list(lint.wide_code(f"Words:\n\n    {wide}\n    b\n\n* {wide}\n    {wide}\n")) == [3]


def test_a_finding_is_printed_with_its_place(tmp_path, capsys):
    (tmp_path / "page.md").write_text("Good.\nIt rests.\n")
    assert lint.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path}/page.md:2: 'rests': write")
