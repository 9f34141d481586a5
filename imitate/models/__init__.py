"""Networks and their parts: encoders, heads, critics, sequence models, optimizers."""
