"""The contract of algorithms, in ``algo.py``, and code that several algorithms share."""
