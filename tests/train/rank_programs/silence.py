"""Program of two ranks: rank 0 is busy for longer than the patience, then rank 1 falls silent.

Argument: ``stopped`` stops rank 1 (its connections stay), ``killed`` ends it (they close).
"""

import os
import signal
import sys
import time

from imitate.errors import TrainingError
from imitate.train.ranks import joined_ranks

SILENCE_S = 4.0


def say(words, stream=sys.stdout):
    stream.write(f"{words}\n")
    stream.flush()


with joined_ranks(uses_cuda=False, silence_s=SILENCE_S) as ranks:
    if ranks.rank == 0:
        time.sleep(2.5 * SILENCE_S)  # as in an evaluation
    ranks.any(False)
    say(f"rank {ranks.rank} goes on")
    if ranks.rank == 1:
        say(f"silent at {time.time()}")
        os.kill(os.getpid(), signal.SIGSTOP if sys.argv[1] == "stopped" else signal.SIGKILL)
    try:
        ranks.any(False)
    except TrainingError as error:
        say(f"error: {error}", sys.stderr)
        os._exit(1)
