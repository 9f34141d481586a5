"""Messages between processes over sockets: ``messages.py`` encodes them, ``frames.py`` sends and receives them."""
