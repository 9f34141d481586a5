"""The contract of algorithms, in ``algo.py``, and the machinery that several of them share."""
