"""Checkpoints of robomimic: read safely, converted to ours and back.

reading.py        a file, without running anything in it
importing.py      their checkpoint -> ours
exporting.py      ours -> theirs, for a release
configuration.py  their tree of configuration -> ours; released_keys.py: ours -> theirs
statistics.py     their normalization <-> ours
names.py          which tensor of ours is which of theirs, for each part of a network; networks.py: for an algorithm
optimizers.py     moments of Adam along the same names

Tensors are moved along the names by :mod:`imitate.interop.names`.
"""
