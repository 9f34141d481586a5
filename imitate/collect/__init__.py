"""Work on demonstrations with a simulator: collect, play back, render and replay them, and convert their actions."""
