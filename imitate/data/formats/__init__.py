"""Formats of other toolkits' datasets, one module each, found through :mod:`imitate.data.formats.registry`."""
