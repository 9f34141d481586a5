"""``--quiet`` of commands whose work reports the demos that are done."""

import time
from functools import partial

import pytest
from typer.testing import CliRunner

from imitate.cli import dataset, shard
from imitate.cli.main import app
from imitate.cli.progress import Progress


@pytest.mark.parametrize(
    ("verb", "module", "work"),
    [
        ("playback", dataset, "imitate.cli.dataset.play"),
        ("shard", shard, "imitate.data.curate.shard.shard_files"),
    ],
)
@pytest.mark.parametrize(("options", "shows"), [((), True), (("--quiet",), False)])
def test_quiet_shows_no_progress(tmp_path, monkeypatch, verb, module, work, options, shows):
    def interrupted(*args, **kwargs):
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, interrupted)
    monkeypatch.setattr(module, "Progress", partial(Progress, every_s=0.01))
    out = ("--video" if verb == "playback" else "--out", str(tmp_path / "out.mp4"))
    done = CliRunner().invoke(app, ["dataset", verb, str(tmp_path / "a.hdf5"), *out, *options])
    assert (f"{verb}: 0 demos" in done.stderr) is shows
