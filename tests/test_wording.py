"""Numbers with their nouns."""

import pytest

from imitate.wording import counted


@pytest.mark.parametrize(("count", "words"), [(0, "0 demos"), (1, "1 demo"), (2, "2 demos")])
def test_a_noun_follows_its_number(count, words):
    assert counted(count, "demo") == words
