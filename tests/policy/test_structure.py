"""Parts of a checkpoint: which types, extents and tensors are accepted."""

import pytest
import torch

from imitate.errors import CheckpointError
from imitate.policy.checkpoint import (
    DatasetStructure,
    check_extent,
    check_kinds,
    check_plain,
    check_structure,
    check_weights,
    named_tensors,
    stored_numbers,
)
from imitate.system.plain_files import MAX_DEPTH
from tests.refusals import refused

ONE = torch.ones(1)


def checkpoint():
    return {
        "format_version": 1,
        "algo_name": "bc",
        "config": "{}",
        "env_metadata": {"env_name": "Lift", "type": 1},
        "shape_metadata": {"all_shapes": {"x": [3]}, "ac_dim": 2, "action_low": [-1.0, -2.0]},
        "model": {"nets": {"w": ONE}},
        "preprocess": {
            "obs": {"x": {"offset": ONE, "scale": ONE, "raw_shape": (3,), "modality": "low_dim"}},
            "actions": {"a": {"offset": ONE, "scale": ONE, "dim": 2}},
        },
        "train_state": {"epoch": 0, "step": 0, "cpu_s": 0.5},
        "provenance": {"datasets": [{"path": "a", "weight": 0.5}]},
        "calibration": {"values": ONE, "held_out": True},
        "own": {"parts": "of others"},
    }


def changed(path, value):
    ckpt = checkpoint()
    *parents, last = path.split(".")
    part = ckpt
    for name in parents:
        part = part[name]
    part[last] = value
    return ckpt


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("own", 3),
        ("environments", [{"env_name": "Door"}]),
        ("environments", None),
        ("language", {"instructions": ["lift"]}),
        ("shape_metadata.action_high", [float("inf"), 1.0]),
        ("preprocess.obs_clip", 5.0),
        ("preprocess.version", 2),
        ("train_state", {}),
        ("provenance", {}),
        ("calibration", None),
        ("model.omitted", 0),
    ],
)
def test_parts_of_the_listed_types_are_accepted(path, value):
    check_structure(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format_version", "1"),
        ("config", "[]"),
        ("config", "{"),
        ("env_metadata.type", "1"),
        ("shape_metadata.ac_dim", 0),
        ("shape_metadata.all_shapes", {"x": [0]}),
        ("shape_metadata.action_low", []),
        ("shape_metadata.action_low", [float("nan")]),
        ("model.nets", {"w": [1.0]}),
        ("model.omitted", -1),
        ("preprocess.version", 0),
        ("preprocess.obs_clip", float("nan")),
        ("preprocess.actions", {"a": {"offset": ONE, "scale": ONE, "dim": 0}}),
        ("train_state.epoch", -1),
        ("calibration.held_out", 1),
        ("rename", {"a": 1}),
    ],
)
def test_parts_of_other_types_are_named(path, value):
    with refused(f"'{path}|of the checkpoint: ", error=CheckpointError):
        check_structure(changed(path, value))


def test_a_missing_part_is_named():
    ckpt = checkpoint()
    del ckpt["model"]
    with refused("'model' of the checkpoint: Field required", error=CheckpointError):
        check_structure(ckpt)


REPEATED = torch.ones(2).expand(3, 2)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2, device="meta"), "'w' is not a plain tensor"),
        (torch.ones(2, 2).to_sparse(), "'w' is not a plain tensor"),
        (
            torch.nested.nested_tensor([ONE, torch.ones(2)], layout=torch.jagged),
            "'w' is not a plain tensor",
        ),
        (torch.ones(2, dtype=torch.complex64), "'w' has dtype torch.complex64"),
        (
            REPEATED,
            "'w' of shape (3, 2) has only 8 stored bytes, which it repeats; expected a tensor with all its values",
        ),
    ],
)
def test_tensors_that_are_no_arrays_are_refused(tensor, words):
    with refused(words, error=CheckpointError):
        check_plain("w", tensor)
    with refused(words.replace("'w'", "'nets.w'"), error=CheckpointError):
        check_structure(changed("model.nets", {"w": tensor}))
    with refused("w", error=CheckpointError):
        stored_numbers({"nets": {"w": tensor}})


def test_arrays_are_accepted():
    whole = torch.ones(4, 3)
    for tensor in (whole, whole[1:, :2], whole.T, torch.ones(0), torch.ones(2, dtype=torch.int8)):
        check_plain("w", tensor)
    assert stored_numbers({"nets": {"a": whole, "b": whole[0], "c": [ONE, (ONE.clone(),)]}}) == 14


@pytest.mark.parametrize(("deeper", "fits"), [(0, True), (1, False)])
def test_the_deepest_tree(deeper, fits):
    tree = 1
    for _ in range(MAX_DEPTH + 1 + deeper):
        tree = [tree]
    if fits:
        check_extent(tree, "a.pt")
    else:
        with refused(f"a.pt: is nested deeper than {MAX_DEPTH} levels", error=CheckpointError):
            check_extent(tree, "a.pt")


def test_the_most_repeated_tree():
    # a leaf list of 1024 values: 1 + 1024 when repeated; stored are 1024 and the outer list's entries
    leaf, most = [0] * 1024, 80
    while 1 + (most + 1) * 1025 <= 16 * (1024 + most + 1) + 2**16:
        most += 1
    check_extent([leaf] * most, "a.pt")
    with refused(
        f"a.pt: has {1024 + most + 1:,} stored values|{1 + (most + 1) * 1025:,}",
        error=CheckpointError,
    ):
        check_extent([leaf] * (most + 1), "a.pt")


def test_weights_keep_their_kind():
    own = {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int64)}
    check_kinds({"a": ONE.half(), "b": ONE.int(), "other": ONE}, own)
    for name, tensor in (("a", ONE.int()), ("b", ONE)):
        with refused(f"'nets.{name}' has dtype {tensor.dtype}", error=CheckpointError):
            check_kinds({name: tensor}, own)


@pytest.mark.parametrize("part", ["nets", "ema", "emas"])
def test_numbers_that_are_not_finite_are_counted(part):
    bad = torch.tensor([1.0, float("nan"), float("inf")])
    model = {"nets": {"v": ONE, "n": torch.ones(2, dtype=torch.int64)}}
    check_weights(model, {"x": ONE})
    huge = torch.full((2,), torch.finfo(torch.float64).max, dtype=torch.float64)
    check_weights({"nets": {"w": huge}}, {})  # only their sum is infinite
    model = {**model, part: {"w": bad}}
    with refused(f"2 of 3 numbers of '{part}.w' are not finite", error=CheckpointError):
        check_weights(model, {})
    with refused("2 of 3 numbers of 'preprocess.obs.0' are not", error=CheckpointError):
        check_weights({"nets": {}}, {"obs": [bad]})


def test_a_part_that_occurs_twice_is_checked_once():
    bad = torch.full((2,), float("nan"))
    for part in ([bad], {"w": bad}, (bad,)):
        found = [name for name, _ in named_tensors({"a": part, "b": {"c": [part]}})]
        assert found == [f"b.c.0.{'w' if isinstance(part, dict) else 0}"]


def test_a_dataset_counts_once_unless_the_checkpoint_says_more():
    assert DatasetStructure().weight == 1.0
