"""The environment and demonstrations of the tests of training."""

from tests.train.conftest import importable_env

__all__ = ["importable_env"]
