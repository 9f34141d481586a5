"""Weights for workers: published once per version, no oftener than wanted, at most two of them in use."""

import pytest
import torch

from imitate.train.online import seats as module
from imitate.train.online.seats import Publisher, acting_weights

from .worlds import make_algo


def test_a_version_is_published_once(monkeypatch):
    def weights(algo):
        assert publisher.version is None  # the one before goes before there is another
        return acting_weights(algo)

    monkeypatch.setattr(module, "acting_weights", weights)
    publisher = Publisher(make_algo())
    assert publisher.version is None
    first = publisher.newest(0, [])
    assert publisher.newest(0, [first]) is first
    second = publisher.newest(1, [first])
    assert (second.version, publisher.version) == (1, 1)
    assert second.shared.key != first.shared.key


def test_another_normalization_is_another_publication():
    algo = make_algo()
    publisher = Publisher(algo)
    first = publisher.newest(0, [])
    algo.preprocess.set_obs_normalization("place", torch.tensor([3.0]), torch.tensor([2.0]))
    second = publisher.newest(0, [])
    assert second.shared.key != first.shared.key
    assert second.shared.get()["preprocess"] != first.shared.get()["preprocess"]


def test_no_third_publication_while_workers_act_with_two():
    publisher = Publisher(make_algo())
    first = publisher.newest(0, [])
    second = publisher.newest(5, [first])
    assert publisher.newest(9, [first, second]) is second
    assert publisher.newest(9, [second, second]).version == 9


def test_publications_are_no_closer_than_wanted(virtual_time):
    publisher = Publisher(make_algo(), every_s=2.0)
    versions = []
    for update in range(11):
        versions.append(publisher.newest(update, []).version)
        virtual_time.sleep(0.5 if update < 4 else 0.75)
    # Due at 0 s, 2 s, 4.25 s (the first time from 4 s on) and 6.5 s: updates 0, 4, 7 and 10.
    assert versions == [0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 10]


@pytest.mark.parametrize("later", [1, 2])
def test_what_was_published_does_not_change_with_the_weights(later):
    algo = make_algo()
    published = Publisher(algo).newest(0, [])
    name, weight = next(iter(algo.nets["actor"].named_parameters()))
    before = weight.detach().clone()
    with torch.no_grad():
        weight += later
    sent = published.shared.get()["nets"]["actor"][name]
    assert torch.equal(torch.from_numpy(sent), before)
