"""Adapters for packages that do not register suitable environments with gymnasium, with one module each.

An adapter registers environments with gymnasium when it is imported. ``ADAPTERS`` of :mod:`imitate.envs.gymnasium_env`
maps module names to adapters.
"""

RATES_HZ = {
    **{"gym_aloha:": 50.0, "metaworld:": 80.0},
    **{"ogbench:pointmaze-": 10.0, "ogbench:": 20.0},
}
"""Actions per second of environments, by the beginning of their names; the first that fits is taken."""
