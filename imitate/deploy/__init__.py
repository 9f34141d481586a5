"""Policies on robots: action limits, stamped chunks, the wire between a policy server and its clients."""
