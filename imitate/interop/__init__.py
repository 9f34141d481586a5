"""Import of other toolkits' checkpoints, and export of ours in their formats.

``names.py`` maps names of tensors between toolkits by rules, and converts the tensors accordingly.
"""
