"""Safe import of robomimic's checkpoints, and export of our checkpoints to robomimic.

``importing.py`` reads a file without running code in it and converts its content. ``exporting.py`` writes a checkpoint
for a release of robomimic, and ``released_keys.json`` has the keys that each release knows. ``networks.py`` maps the
names of tensors and the normalization.
"""
