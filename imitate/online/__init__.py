"""Learning in environments: what is remembered, who collects it."""
