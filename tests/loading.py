"""Modules from files that lie in no package: examples, scripts."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load(path):
    """Return the module of a file, such as ``load("scripts/tutorials.py")``; relative to the repository."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
