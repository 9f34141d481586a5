"""Import of checkpoints from other toolkits, export to their formats, and adapters to their policy interfaces.

``names.py`` maps names of tensors between toolkits by rules, and converts the tensors accordingly. ``ding.py`` gives an
algorithm the interface of a DI-engine policy, and ``srl.py`` the interfaces of a policy and a trainer of SRL.
"""
