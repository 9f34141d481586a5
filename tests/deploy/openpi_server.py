"""A server that speaks as openpi's does: metadata, then actions for observations, and a traceback where it fails.

Written with msgpack alone, so that it shares no code with the wire of the package.
"""

import contextlib
import threading
import traceback

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve


def pack(message):
    def default(value):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }

    return msgpack.packb(message, default=default)


def unpack(data):
    def hook(value):
        if b"__ndarray__" not in value:
            return value
        return np.ndarray(value[b"shape"], np.dtype(value[b"dtype"]), value[b"data"])

    return msgpack.unpackb(data, object_hook=hook)


@contextlib.contextmanager
def openpi_server(infer, metadata=None):
    """Serve ``infer``, from an observation to {"actions": (K, A)}; gives the address."""

    def session(connection):
        connection.send(pack(metadata or {}))
        try:
            while True:
                reply = infer(unpack(connection.recv()))
                connection.send(pack({**reply, "server_timing": {"infer_ms": 1.0}}))
        except ConnectionClosed:
            pass
        except Exception:
            connection.send(traceback.format_exc())
            connection.close(1011, "Internal server error. Traceback included in previous frame.")

    with serve(session, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(5)
