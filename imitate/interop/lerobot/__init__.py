"""Policies of LeRobot: read from their folders without LeRobot, converted to ours.

folder.py      a folder: configuration, weights and statistics, of any release since 0.2
features.py    its observations and actions, and their names here
statistics.py  its normalization -> ours
act.py, diffusion.py   configuration and names of the tensors of each kind of policy
importing.py   the whole policy -> a checkpoint of ours
"""
