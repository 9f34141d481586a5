"""Fixtures of this folder."""

from tests.deploy.in_process import network_of, server, server_of
from tests.deploy.terminal import terminal

__all__ = ["network_of", "server", "server_of", "terminal"]
