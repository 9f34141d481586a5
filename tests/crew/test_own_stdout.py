"""Standard output while a library prints there too."""

import subprocess
import sys

CODE = """
import os, sys, threading
from imitate.crew.ray_cluster import own_stdout

def others():
    print("from its thread")
    os.write(1, b"from below\\n")

print("before")
with own_stdout(foreign="lib_"):
    thread = threading.Thread(target=others, name="lib_printer")
    thread.start()
    thread.join()
    print("result")
    os.system("echo from a child")
print("after", flush=True)
os.write(1, b"and below\\n")
"""


def test_only_our_own_lines_come_there():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["before", "result", "after", "and below"]
    assert sorted(done.stderr.splitlines()) == ["from a child", "from below", "from its thread"]
