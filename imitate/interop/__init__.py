"""Import of other toolkits' checkpoints, export of ours in their formats, and their ways to call policies.

``names.py`` maps names of tensors between toolkits by rules, and converts the tensors accordingly. ``ding.py`` gives
algorithms the modes of a DI-engine policy, ``srl.py`` makes policies and trainers of SRL of them.
"""
