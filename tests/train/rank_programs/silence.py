"""Program of two ranks: rank 0 is busy for longer than the patience, then rank 1 falls silent.

Argument: ``stopped`` stops rank 1 (its connections stay), ``killed`` ends it (they close).
"""

import os
import signal
import sys
import time

from imitate.errors import TrainingError
from imitate.train.ranks import joined_ranks

FATE = sys.argv[1]
SILENCE_S = 10.0 if FATE == "stopped" else 45.0


def say(words, stream=sys.stdout):
    stream.write(f"{words}\n")
    stream.flush()


with joined_ranks(uses_cuda=False, silence_s=SILENCE_S) as ranks:
    if ranks.rank == 0:
        time.sleep(1.5 * SILENCE_S if FATE == "stopped" else 0.5)  # as in an evaluation
    ranks.any(False)
    say(f"rank {ranks.rank} goes on")
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP if FATE == "stopped" else signal.SIGKILL)
    try:
        ranks.any(False)
    except TrainingError as error:
        say(f"error: {error}", sys.stderr)
        os._exit(1)
