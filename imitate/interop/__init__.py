"""Checkpoints of other toolkits: read, converted to ours, and written.

``names.py`` maps names of tensors between toolkits by rules, and moves the tensors along these names.
"""
