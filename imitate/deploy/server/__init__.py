"""The policy server and its client: ``server.py`` and ``client.py``; ``wire.py`` has the messages."""
