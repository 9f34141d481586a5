"""Online RL: collectors of environment steps, replay buffers, learners."""
