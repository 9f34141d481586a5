"""Tables of instructions, and what demos and batches say about tasks."""

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from imitate import SequenceDataset
from imitate.data import DataSource
from imitate.errors import ConfigError, DatasetError, UserError
from imitate.system.instructions import Instructions, instruction_of
from tests.refusals import refused


def told(demo_file, name, words, **kwargs):
    """A file whose demos have these instructions, one each; None for a demo that says nothing."""
    path = demo_file(name, num_demos=len(words), **kwargs)
    with h5py.File(path, "a") as file:
        for i, word in enumerate(words):
            if word is not None:
                file[f"data/demo_{i}"].attrs["language"] = word
    return path


# ---- the table -----------------------------------------------------------------------------------


def test_one_hot_is_the_sorted_distinct_instructions():
    table = Instructions.one_hot(["push", "lift", "push"])
    assert (table.names, table.vector("push").tolist()) == (("lift", "push"), [0.0, 1.0])
    assert table.size == 2
    assert table.words == "lang_emb: one-hot of 2 instructions"
    assert Instructions.texts(["go"], 4).words == "lang_emb: UTF-8 bytes of 1 instruction"
    rows = np.ones((2, 3), np.float32)
    assert Instructions(("a", "b"), rows, encoder="clip").words.startswith(
        "lang_emb: vectors of clip"
    )


def test_an_unknown_instruction_is_answered_with_the_known_ones():
    with refused("'pull' is not known; known: 'lift'; 'push'", error=UserError):
        Instructions.one_hot(["push", "lift"]).vector("pull")
    with refused("known: 'task 0'; | and 5 more - did you mean 'task 12'", error=UserError):
        Instructions([f"task {i}" for i in range(15)], np.eye(15)).number("task_12")


def test_a_table_from_a_file(tmp_path):
    path = tmp_path / "clip.npz"
    vectors = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]])
    np.savez(path, instructions=["push the cube", "lift"], embeddings=vectors)
    table = Instructions.load(path)
    assert table.names == ("push the cube", "lift")
    assert table.vector("lift").tolist() == [1.0, 0.0, 0.25]
    back = Instructions.from_dict(table.to_dict())
    assert back.names == table.names
    np.testing.assert_array_equal(back.vectors, table.vectors)


def table(names, vectors):
    return {"instructions": names, "embeddings": vectors}


@pytest.mark.parametrize(
    "arrays",
    [
        {"embeddings": np.zeros((2, 3))},
        table(["a", "b"], np.zeros((3, 3))),
        table(["a", "b"], np.zeros(2)),
        table([1, 2], np.zeros((2, 3))),
        table(["a", "a"], np.zeros((2, 3))),
        table(["a", "b"], np.full((2, 3), np.nan)),
        table(np.array(["a", None], dtype=object), np.zeros((2, 3))),
        table(np.zeros(0, dtype=str), np.zeros((0, 3))),
        None,
    ],
)
def test_a_file_that_is_no_table(tmp_path, arrays):
    path = tmp_path / "t.npz"
    path.write_bytes(b"nothing of the kind") if arrays is None else np.savez(path, **arrays)
    with refused("train.language_embeddings|t.npz", error=ConfigError):
        Instructions.load(path)


def test_what_a_demo_was_told():
    assert instruction_of({"language": " lift it ", "task_id": 3}) == "lift it"
    assert instruction_of({"language": "", "task_id": 3}) == "task 3"
    for listed in (["lift it"], np.array([b"lift it"]), np.array("lift it", dtype=object)):
        assert instruction_of({"language": listed}) == "lift it"
    with pytest.raises(DatasetError, match="'language' of a demo is an array of 2 values"):
        instruction_of({"language": np.array(["lift", "it"])})
    assert instruction_of({"task_id": 0}) == "task 0"
    assert instruction_of({}) is None
    assert instruction_of({"language": "lift it"}, "push it") == "push it"


# ---- batches -------------------------------------------------------------------------------------


def test_each_sample_has_the_task_of_its_demo(demo_file):
    path = told(demo_file, "a.hdf5", ["push", None, "lift"], length=3)
    dataset = SequenceDataset(path, ["object"])
    assert dataset.tasks == ("lift", "push")
    batch = next(iter(DataLoader(dataset, batch_size=9)))
    assert batch["task_id"].tolist() == [1, 1, 1, -1, -1, -1, 0, 0, 0]
    assert batch["task_id"].dtype == torch.int64
    assert "lang_emb" not in batch["obs"]
    assert dataset[0]["task_id"] == 1


def test_without_any_instruction_batches_have_no_task(demo_file):
    dataset = SequenceDataset(demo_file(), ["object"])
    assert dataset.tasks == ()
    assert "task_id" not in dataset[[0]]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_vector_of_the_instruction_is_an_observation(demo_file, workers):
    path = told(demo_file, "a.hdf5", ["push", "lift"], length=3, next_obs=False)
    known = Instructions(("lift", "push", "fold"), np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    window = {"seq_length": 4, "load_next_obs": True}
    dataset = SequenceDataset(path, ["object", "lang_emb"], instructions=known, **window)
    assert dataset.serves_language
    assert dataset.obs_shapes == {"object": (10,), "lang_emb": (2,)}
    batch = next(iter(DataLoader(dataset, batch_size=6, num_workers=workers)))
    for group in ("obs", "next_obs"):
        vectors = batch[group]["lang_emb"]
        assert vectors.shape == (6, 4, 2)
        assert vectors[:, 2].tolist() == [[3, 4]] * 3 + [[1, 2]] * 3
    assert dataset[5]["obs"]["lang_emb"].tolist() == [[1, 2]] * 4


def test_the_vectors_are_not_normalized(demo_file):
    path = told(demo_file, "a.hdf5", ["push", "lift"])
    stats = SequenceDataset(path, ["object", "lang_emb"]).statistics()["obs"]["lang_emb"]
    assert (stats.mean.tolist(), stats.std.tolist()) == ([0, 0], [1, 1])
    assert (stats.min.tolist(), stats.max.tolist()) == ([-1, -1], [1, 1])


def test_a_file_with_vectors_of_its_own_is_read(demo_file):
    path = demo_file(obs_dims={"object": 3, "lang_emb": 2}, num_demos=2)
    dataset = SequenceDataset(path, ["object", "lang_emb"])
    assert not dataset.serves_language
    with h5py.File(path) as file:
        wanted = file["data/demo_1/obs/lang_emb"][5].astype(np.float32)
    np.testing.assert_array_equal(dataset[17]["obs"]["lang_emb"][0].numpy(), wanted)


def test_the_instruction_of_a_whole_file_comes_first(demo_file):
    one = told(demo_file, "one.hdf5", ["push", None], length=2)
    two = told(demo_file, "two.hdf5", ["lift"], length=2)
    dataset = SequenceDataset([DataSource(one, lang="fold"), DataSource(two)], ["object"])
    assert dataset.tasks == ("fold", "lift")
    assert dataset[list(range(6))]["task_id"].tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("told_words", "known", "words"),
    [
        (["push", None], None, "a.hdf5: demo 'demo_1' has no instruction|set lang"),
        (["push", "pull"], ["push"], "demo_1|'pull' is not known|known: 'push'"),
    ],
)
def test_a_demo_without_a_known_instruction_is_named(demo_file, told_words, known, words):
    path = told(demo_file, "a.hdf5", told_words)
    instructions = known and Instructions.one_hot(known)
    with refused(words):
        SequenceDataset(path, ["object", "lang_emb"], instructions=instructions)
