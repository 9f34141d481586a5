"""Environments of other packages that do not register fitting ones with gymnasium: one adapter module each.

An adapter registers environments with gymnasium when it is imported. ``ADAPTERS`` of :mod:`imitate.envs.gymnasium_env`
says which one stands for the module of a name.
"""

RATES_HZ = {"gym_aloha": 50.0, "metaworld": 80.0}
"""Actions per second of environments, by the module that their name begins with."""
