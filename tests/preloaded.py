"""The command ``imitate`` from a process that has imported torch: it starts in milliseconds rather than seconds.

Run as a program with the path of a socket, this is a server that forks a process for each command. A command on the
PATH, made by `preloaded_commands`, sends its arguments, folder, environment and open streams there. It hands Ctrl-C and
SIGTERM on, and where it is killed, so is what it has started. `imitate --program CODE WORDS...` runs a program instead,
as `python -c CODE WORDS...` does.
"""

import atexit
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRELOADED = [
    "imitate.cli.main",
    "imitate.cli.collect",
    "imitate.cli.eval",
    "imitate.cli.train",
    "imitate.train.trainer",
    "imitate.evaluate.worker",
    "imitate.data.quality.report",
    "gymnasium",
    "matplotlib.figure",
    "torch.utils.tensorboard",
    "tests.no_picture",
]
STREAMS = 3
CLIENT = """#!{python} -IS
import json, os, resource, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    command = {{"argv": sys.argv[1:], "folder": os.getcwd(), "environ": dict(os.environ)}}
    command["file_size"] = resource.getrlimit(resource.RLIMIT_FSIZE)
    server.sendall(json.dumps(command).encode() + b"\\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
    sys.exit(int(server.recv(16) or b"137"))
"""


@contextmanager
def preloaded_commands():
    """Run the server while the context lasts.

    Yields:
        A folder with the command ``imitate``, for the PATH.
    """
    # A folder of its own, because the path of a socket may have no more than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="imitate"))
    address = str(folder / "socket")
    with subprocess.Popen(
        [sys.executable, __file__, address],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout.readline() == b"ready\n"
            command = folder / "imitate"
            command.write_text(CLIENT.format(python=sys.executable, address=address))
            command.chmod(0o755)
            yield folder
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            shutil.rmtree(folder)


def _serve(address):
    """Answer commands until killed."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # collections of a command pass by what is imported
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                break
            connection.close()
            _reap()
    # Two processes for each command: one runs it, the other hands signals on and tells when all of it has ended.
    _, streams, _, _ = socket.recv_fds(connection, 1, STREAMS)
    with connection.makefile() as lines:
        said = json.loads(lines.readline())
    command = os.fork()
    if command:
        for stream in streams:
            os.close(stream)
        threading.Thread(target=_hand_on, args=(connection, command), daemon=True).start()
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        connection.sendall(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
    connection.close()
    _become(streams, said)


def _hand_on(connection, command):
    """Send the command the signals that its client gets; the end of the client kills it."""
    with suppress(OSError):  # it has ended meanwhile
        while True:
            os.kill(command, (connection.recv(1) or bytes([signal.SIGKILL]))[0])


def _reap():
    """Forget the processes of commands that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _become(streams, said):
    """Run the command of a client, with its streams, folder, environment and limit on the size of files."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    resource.setrlimit(resource.RLIMIT_FSIZE, said["file_size"])
    os.chdir(said["folder"])
    os.environ.clear()
    os.environ.update(said["environ"])
    path = said["environ"].get("PYTHONPATH", "")
    sys.path[:1] = [said["folder"], *filter(None, path.split(os.pathsep))]
    sys.argv = ["imitate", *said["argv"]]
    importlib.invalidate_caches()
    main = sys.modules["imitate.cli.main"].main
    if said["argv"][:1] == ["--program"]:
        code, sys.argv = said["argv"][1], ["-c", *said["argv"][2:]]
        main = partial(exec, code, {"__name__": "__main__"})
    _end(main)


def _end(main):
    """Run it, and end as an interpreter would, but for freeing each object that the server has imported: a second."""
    code = 0
    try:
        main()
    except SystemExit as told:
        code = told.code if isinstance(told.code, int) else int(told.code is not None)
        if isinstance(told.code, str):
            sys.stderr.write(f"{told.code}\n")
    except BaseException as error:
        traceback.print_exc()
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
