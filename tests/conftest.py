"""Settings for the whole suite."""

import torch

# Two threads that fight for one core are many times slower than one.
torch.set_num_threads(1)
