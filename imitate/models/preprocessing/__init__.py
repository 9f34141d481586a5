"""Steps of the pipeline between raw values and networks, which :class:`~imitate.models.preprocess.Preprocess` runs."""
