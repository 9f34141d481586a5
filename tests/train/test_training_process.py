"""A training away from the sweep's folder: all that it has written arrives."""

from imitate.train.run_copy import received
from imitate.train.training_process import Training, prepare

FILES = 400
PROGRAM = f"""
import os, pathlib
from imitate.processes import end_with_stdin
end_with_stdin(0.0, os.environ["IMITATE_SCRATCH"])
folder = pathlib.Path(os.environ["IMITATE_SCRATCH"], "run")
for number in range({FILES}):
    (folder / f"{{number}}.txt").write_text(str(number))
"""


class Notes:
    """Reports of a worker that write what is sent into a folder."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, call):
        pass

    def note(self, value):
        received(value, self._folder)


def test_what_is_written_last_arrives_before_the_scratch_folder_is_removed(tmp_path):
    """The process that removes it, where a node is lost, looks for the end of the training now and then only."""
    for attempt in range(3):
        place = tmp_path / str(attempt)
        item = Training("run", "{}", str(tmp_path), away=True, program=PROGRAM)
        assert prepare(Notes(place))(item) == 0
        assert {f"{number}.txt" for number in range(FILES)} <= {p.name for p in place.iterdir()}
