"""Former paths of modules: what they give."""

import importlib
import pickle
import sys
import warnings

import pytest

import imitate.moved
from imitate.interactive.supervision import supervised_episode
from imitate.moved import CLASSES, MOVED, present_path


def imported(path):
    """The module or the member of a module that a path names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if present_path(path) is not None:
            return importlib.import_module(path)
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_every_former_path_names_a_module():
    assert {former: imported(former).__name__ for former in MOVED} == MOVED


@pytest.mark.parametrize("former", sorted(CLASSES))
def test_every_former_class_is_there_with_a_warning(former):
    module, _, name = former.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{former} is now {CLASSES[former]}") as warned:
        found = getattr(importlib.import_module(module), name)
    assert found is imported(CLASSES[former])
    assert warned[0].filename == __file__


def test_other_names_are_missing_as_ever():
    with pytest.raises(AttributeError, match=r"module 'imitate.algo.gail' has no attribute 'SAIL'"):
        importlib.import_module("imitate.algo.gail").SAIL  # noqa: B018


def test_a_module_keeps_its_own_name_and_place():
    module = importlib.import_module("imitate.interactive.dagger")
    assert imported("imitate.train.dagger") is module
    assert module.__spec__.name == module.__name__ == "imitate.interactive.dagger"


def test_the_present_path_is_named_in_a_warning(monkeypatch):
    monkeypatch.delitem(sys.modules, "imitate.train.mosaic", raising=False)
    with pytest.warns(
        DeprecationWarning, match="train.mosaic is now imitate.evaluation.mosaic"
    ) as told:
        import imitate.train.mosaic  # noqa: F401
    assert told[0].filename == __file__  # the importing line, not the finder's


@pytest.mark.parametrize("path", ["imitate.train.nothing", "imitate.collection.nothing"])
def test_other_paths_are_unknown_as_ever(path):
    with pytest.raises(ModuleNotFoundError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module(path)


def test_pickles_by_a_former_path():
    former = pickle.PROTO + bytes([0]) + b"cimitate.online.supervision\nsupervised_episode\n."
    assert pickle.loads(former) is supervised_episode


def test_installed_once():
    before = list(sys.meta_path)
    imitate.moved.install()
    assert sys.meta_path == before
