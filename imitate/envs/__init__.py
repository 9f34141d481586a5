"""Environments with a common interface; a simulator is imported only when one of its environments is made."""

from imitate.envs.env import Env
from imitate.envs.make import make_env
from imitate.envs.vector import make_vector_env

__all__ = ["Env", "make_env", "make_vector_env"]
