"""Former paths of modules: what they give, in this process and in others."""

import importlib
import multiprocessing
import pickle
import subprocess
import sys
import warnings

import pytest

import imitate.moved
from imitate.interactive.supervision import supervised_episode
from imitate.moved import CLASSES, MOVED, present_path

DOCUMENTED = """
algo.bc_config.BCConfig algo.bc_transformer.BC_Transformer collection.collect.collect collection.demonstrate
collection.render.render collection.replay.replayed data.action_scale.recorded_scale data.build.build_datasets
data.extents.Extents data.hdf5_format.DatasetFile data.journal data.sequence_dataset.SequenceDataset
data.store.Store data.transitions data.writer.DatasetWriter online.supervision.supervised_episode
policy.robomimic.exporting.to_robomimic policy.robomimic.importing.algo_from_robomimic
train.algo_check.check_algo train.dagger.dagger train.environments train.errors.TrainingError
train.evaluation.evaluate train.fqe.evaluate_checkpoint train.run_folder.find_checkpoint
train.seeding.seed_everything
"""
"""Paths that documentation and examples have named, with a function or class of the module where they named one."""


def imported(path):
    """The module or the member of a module that a path names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if present_path(path) is not None:
            return importlib.import_module(path)
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", [f"imitate.{path}" for path in DOCUMENTED.split()])
def test_a_documented_path_gives_the_same_object(path):
    module = path if present_path(path) else path.rpartition(".")[0]
    present = importlib.import_module(present_path(module))
    wanted = present if module == path else getattr(present, path.rpartition(".")[2])
    assert imported(path) is wanted


@pytest.mark.parametrize("former", sorted(MOVED))
def test_every_former_path_names_a_module(former):
    assert imported(former).__name__ == MOVED[former]


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


def test_the_present_path_is_named_in_a_warning():
    code = "import imitate.train.mosaic"
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert "imitate.train.mosaic is now imitate.evaluation.mosaic" in done.stderr
    assert "<string>:1" in done.stderr  # the importing line, not the finder's


@pytest.mark.parametrize("path", ["imitate.train.nothing", "imitate.collection.nothing"])
def test_other_paths_are_unknown_as_ever(path):
    with pytest.raises(ModuleNotFoundError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module(path)


def test_pickles_by_a_former_path():
    former = pickle.PROTO + bytes([0]) + b"cimitate.online.supervision\nsupervised_episode\n."
    assert pickle.loads(former) is supervised_episode


@pytest.mark.slow("a spawned process imports torch by a former path")
def test_processes_find_a_function_by_a_former_path():
    former = imported("imitate.train.seeding").seed_everything
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(former, (1,)) is None


def test_installed_once():
    before = list(sys.meta_path)
    imitate.moved.install()
    assert sys.meta_path == before
