"""Items with shared values, in the form in which workers are sent them."""

import pickle

import pytest

from imitate.crew import Shared
from imitate.crew.shared import Holdings, ItemHeader, Ledger, packed
from imitate.errors import WorkerError


def sent(ledger, holdings, item):
    """Send an item as back ends do; return it as its worker sees it, and the header."""
    whole = packed(item)
    header = ledger.header(list(whole.shared))
    values = iter([whole.shared[key].data for key in header.keys])
    holdings.update(header, lambda: next(values))
    return holdings.item(whole.data), header


def test_each_value_is_sent_once_while_it_is_kept():
    one, two, three = Shared("one"), Shared("two"), Shared("three")
    ledger, holdings = Ledger(), Holdings()
    first, header = sent(ledger, holdings, {"weights": one, "again": [one]})
    assert first["weights"].get() == "one" and first["weights"] is first["again"][0]
    assert header == ItemHeader((one.key,))
    assert sent(ledger, holdings, one)[1] == ItemHeader()
    assert sent(ledger, holdings, two)[1] == ItemHeader((two.key,))
    assert sent(ledger, holdings, one)[1] == ItemHeader()
    again, header = sent(
        ledger, holdings, three
    )  # the one that was not used for longest is forgotten
    assert header == ItemHeader((three.key,), (two.key,)) and again.get() == "three"
    assert sent(ledger, holdings, first["weights"].key)[0] == one.key


def test_an_item_may_need_more_values_than_are_kept():
    values = [Shared(number) for number in range(4)]
    ledger, holdings = Ledger(), Holdings()
    came, header = sent(ledger, holdings, values)
    assert [value.get() for value in came] == [0, 1, 2, 3] and len(header.keys) == 4
    _, header = sent(ledger, holdings, Shared(5))
    assert header.forgotten == tuple(value.key for value in values[:3])


def test_a_value_is_as_it_was_when_it_was_shared():
    numbers = [1, 2]
    shared = Shared(numbers)
    numbers.append(3)
    assert shared.get() == [1, 2] and shared.get() is shared.get()


def test_only_items_carry_shared_values():
    with pytest.raises(WorkerError, match="only be pickled inside an item"):
        pickle.dumps(Shared(1))
    with pytest.raises(WorkerError, match="only be unpickled by the worker"):
        pickle.loads(packed(Shared(1)).data)
