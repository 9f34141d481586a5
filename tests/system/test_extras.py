"""Optional packages: bounds of the package, and advice that works."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import read_configuration

from imitate.data.formats.base import extra
from imitate.system.extras import REQUIREMENTS, install_command, missing
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def declared():
    """Extras of pyproject.toml, as setuptools reads them."""
    project = read_configuration(ROOT / "pyproject.toml", ignore_option_errors=True)["project"]
    return {
        name: {str(Requirement(text)) for text in texts}
        for name, texts in project["optional-dependencies"].items()
    }


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_advice_and_metadata_say_the_same(declared, name):
    assert {str(Requirement(text)) for text in REQUIREMENTS[name]} == declared[name]


def test_extras_for_one_python_fit_together(declared):
    """Whatever is installed beside robosuite stays below what wants numpy 2."""
    for name in ("lerobot", "minari"):
        (bound,) = (
            Requirement(text)
            for text in declared[name]
            if text.startswith("pyarrow") and '"3.11"' not in text and "<23" in text
        )
        assert bound.marker is not None
        assert bound.marker.evaluate({"python_version": "3.12"})
        assert not bound.specifier.contains("23.0")
        assert not bound.marker.evaluate({"python_version": "3.13"})
    for name in ("robosuite", "simulator"):
        (numpy,) = (Requirement(text) for text in declared[name] if text.startswith("numpy"))
        assert not numpy.specifier.contains("2.0")


@pytest.mark.parametrize(
    ("version", "command"),
    [((3, 12), "'pyarrow>=15,<23' 'av>=12'"), ((3, 13), "'pyarrow>=15' 'av>=12'")],
)
def test_the_command_is_for_the_python_that_runs(monkeypatch, version, command):
    monkeypatch.setattr("sys.version_info", version)
    assert install_command("lerobot") == f"pip install {command}"


def test_a_package_that_is_missing():
    words = "this format cannot be read or written: the package 'no_such_arrow' is not installed"
    with refused(f"{words}|; do: pip install 'zarr>=3' (in a clone: pip install '.[zarr]')"):
        extra("no_such_arrow.parquet", "zarr")


def test_a_package_that_does_not_fit_says_why_and_which_version_does(tmp_path, monkeypatch):
    """As pyarrow 26 does beside numpy 1: an ImportError without the name of a module."""
    (tmp_path / "stubborn_arrow.py").write_text(
        "raise ImportError('pyarrow requires NumPy 2.0 or newer, found 1.26.4')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.version_info", (3, 11))
    words = (
        "'stubborn_arrow' is installed but cannot be imported: pyarrow requires NumPy 2.0 or newer"
    )
    with refused(f"{words}|do: pip install 'pyarrow>=15,<23' 'av>=12'|pip install '.[lerobot]'"):
        extra("stubborn_arrow", "lerobot")


def test_the_version_that_does_not_fit_is_named():
    error = ImportError("numpy is too old")
    error.name = "numpy.core"
    words = missing("zarr", error)
    assert words.startswith("the package 'numpy' is installed (")
    assert "imitate[" not in words
