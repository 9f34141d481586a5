"""robosuite, imported by the process that workers of tests are forked from: each would take seconds for it."""

from contextlib import suppress

from imitate.envs.robosuite_env import import_robosuite
from imitate.errors import EnvError

with suppress(EnvError):
    import_robosuite()
