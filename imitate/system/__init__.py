"""Files, processes, time, seeds, text, images, statistics and trusted names, for all layers."""
