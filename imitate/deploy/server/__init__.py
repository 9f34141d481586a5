"""The policy server and its client: ``server.py`` and ``client.py``; ``session.py`` has the messages."""
