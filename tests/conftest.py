"""Settings and fixtures for the whole suite."""

import importlib.util
from pathlib import Path

import pytest
import torch

# Two threads that fight for one core are many times slower than one.
torch.set_num_threads(1)


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


demo_files = _load("demo_files")


@pytest.fixture(scope="session")
def make_demo_file():
    """`make_demo_file` of demo_files.py, for tests that choose the folder themselves."""
    return demo_files.make_demo_file


@pytest.fixture
def demo_file(tmp_path):
    """Writes a demonstration file into the test's folder: see `make_demo_file` in demo_files.py for its arguments."""

    def make(name="demos.hdf5", **kwargs):
        return demo_files.make_demo_file(tmp_path / name, **kwargs)

    return make


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Decoded images go to a folder of the test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("IMITATE_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def trusted_modules(monkeypatch):
    """The environments of tests/train/point_mass_env are trusted, and each test's own trust ends with it."""
    monkeypatch.setenv("IMITATE_TRUST_MODULES", "goals,point_mass,tools")
