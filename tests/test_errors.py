import pytest

from imitate.errors import MOST_NAMES, nearest, printable
from imitate.system.text import counted


def test_the_nearest_name():
    assert nearest("batchsize", ["batch_size", "epochs"]) == "did you mean 'batch_size'?"


def test_all_names_where_none_is_near():
    assert nearest("x", ["lift", "can"]) == "valid names: can, lift"
    assert nearest("x", []) == "no name is valid here"


def test_of_many_names_only_a_few():
    said = nearest("zzz", [f"name{k:02}" for k in range(MOST_NAMES + 1)])
    assert said == "valid names are name00, name01, name02, name03, name04 ... (61 in all)"


def test_text_for_a_terminal_has_no_control_characters():
    text = "Lift: 3 demos\n\tæ 日本 😀 e\u0301\u3000x"
    assert printable(text) == text
    said = printable("a\x1b[2Jb\x9bc\rd\u202ee\x00f\ud800g\u2028h\x7f")
    assert said == "a\\x1b[2Jb\\x9bc\\rd\\u202ee\\x00f\\ud800g\\u2028h\\x7f"


@pytest.mark.parametrize(("count", "words"), [(0, "0 demos"), (1, "1 demo"), (2, "2 demos")])
def test_a_noun_follows_its_number(count, words):
    assert counted(count, "demo") == words
