"""Check of a policy on recorded demonstrations, before a robot moves."""
