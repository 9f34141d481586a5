"""Faults of demonstration files (``doctor``) and a page that shows a file (``report``)."""
