"""Fixtures of this folder."""

from tests.deploy.in_process import network_of

__all__ = ["network_of"]
