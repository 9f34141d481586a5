"""Pure functions of tensors and numbers: losses, returns, schedules, rotations, noise, statistics."""
