"""Interactive imitation learning: rollouts of a policy that an expert corrects (DAgger, HG-DAgger)."""
