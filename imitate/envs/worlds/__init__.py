"""Adapters for packages that do not register suitable environments with gymnasium: a module for each package.

An adapter registers environments with gymnasium when it is imported. ``ADAPTERS`` of :mod:`imitate.envs.gymnasium_env`
maps module names to adapters.
"""

RATES_HZ = {
    **{"gym_aloha:": 50.0, "metaworld:": 80.0},
    **{"ogbench:pointmaze-": 10.0, "ogbench:": 20.0},
}
"""Control rates of environments in Hz, by the beginning of the environment's name; the first match counts."""
