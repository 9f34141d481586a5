"""The sub-commands of ``imitate dataset``; ``dataset.py`` mounts them."""
