"""Preprocessing steps between raw values and networks, run by :class:`~imitate.models.preprocess.Preprocess`."""
