"""``imitate dataset embed``, with a stand-in for the text model."""

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data.language import Instructions
from imitate.models import language
from tests.demo_files import make_demo_file


class Lengths:
    """A text's vector: its length, and 1."""

    def __init__(self, name):
        assert name == "some/model"

    def embed(self, texts):
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(language, "TransformersText", Lengths)
    path = make_demo_file(tmp_path / "told.hdf5", num_demos=3, length=4)
    with h5py.File(path, "a") as demos:
        for demo, said in zip(demos["data"].values(), ("stack", "lift it", "stack"), strict=True):
            demo.attrs["language"] = said
    return path


def run(*args):
    return CliRunner().invoke(app, ["dataset", "embed", *map(str, args), "--encoder", "some/model"])


def test_a_table_that_training_reads(file, tmp_path):
    out = tmp_path / "table.npz"
    done = run(file, "--out", out, "--text", "open the door")
    assert done.exit_code == 0, done.output
    assert f"{out}: 3 instructions, vectors of 2" in done.output
    table = Instructions.load(out)
    assert table.names == ("lift it", "open the door", "stack")
    assert table.vector("lift it").tolist() == [7.0, 1.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.npz", "told.hdf5"]


def test_a_table_is_not_replaced_unasked(file, tmp_path):
    out = tmp_path / "table.npz"
    assert run(file, "--out", out).exit_code == 0
    again = run(file, "--out", out, "--text", "more")
    assert again.exit_code == 2
    assert "exists; choose another --out, or --overwrite" in again.output
    assert run(file, "--out", out, "--text", "more", "--overwrite").exit_code == 0
    assert "more" in Instructions.load(out).names
