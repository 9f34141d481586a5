"""Other toolkits' checkpoints, read and written.

``names.py`` says which tensor of ours is which of theirs, ``weights.py`` moves tensors along these names.
"""
