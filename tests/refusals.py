"""Refusals: an error whose message is one line that names what has to be named."""

from contextlib import contextmanager

import pytest

from imitate.errors import DatasetError


@contextmanager
def refused(words, *more, error=DatasetError):
    """Assert that the body raises an error whose message has these words, divided by bars, and more."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words.split("|"), *more):
        assert str(word) in message, message
