"""Foreign dataset formats: one module each, found through :mod:`imitate.data.formats.registry`."""
