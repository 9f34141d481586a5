"""The names that users' code relies on, and what the source does not do."""

import ast
import importlib
import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest

import imitate

PACKAGE = Path(imitate.__file__).parent


# ---- names ---------------------------------------------------------------------------------------


def test_public_names():
    for name in imitate.__all__:
        assert getattr(imitate, name) is not None
    for name in ("Algo", "RolloutPolicy", "SequenceDataset"):
        assert inspect.isclass(getattr(imitate, name))
    for name in (
        "algo_factory",
        "load_config",
        "policy_from_checkpoint",
        "register_algo_factory_func",
    ):
        assert inspect.isfunction(getattr(imitate, name))
    assert importlib.import_module("imitate.data").SequenceDataset is imitate.SequenceDataset
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = imitate.nonsense


def parameters(function):
    return " ".join(name for name in inspect.signature(function).parameters if name != "self")


SIGNATURES = {
    "algo_factory": "algo_name config obs_key_shapes ac_dim device load_pretrained",
    "policy_from_checkpoint": "device ckpt_path ckpt_dict verbose precision rename",
    "RolloutPolicy.__call__": "ob goal batched_ob",
    "RolloutPolicy.start_episode": "lang mask",
    "Algo.get_action": "obs_dict goal_dict",
    "Algo.train_on_batch": "batch epoch validate",
    "Algo.act": "obs state goal explore generator",
}
METHODS = (
    "process_batch_for_training log_info on_epoch_end set_train set_eval serialize deserialize reset initial_state "
    "reset_state"
)
DATASET = (
    "hdf5_path obs_keys action_keys dataset_keys action_config frame_stack seq_length pad_frame_stack pad_seq_length "
    "get_pad_mask goal_mode hdf5_cache_mode hdf5_use_swmr hdf5_normalize_obs filter_by_attribute load_next_obs lang "
    "demo_limit"
)
"""Robomimic's arguments, in its order."""


def test_signatures_of_the_contract():
    for name, wanted in SIGNATURES.items():
        assert parameters(attrgetter(name)(imitate)) == wanted, name
    assert all(callable(getattr(imitate.Algo, name)) for name in METHODS.split())
    assert f"{parameters(imitate.SequenceDataset.__init__)} ".startswith(f"{DATASET} ")


# ---- what the source does not do -----------------------------------------------------------------


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def test_nothing_is_printed_and_nothing_is_evaluated():
    found = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        called = re.search(
            r"(?<![\w.])(print|eval|exec|input)\(", text
        )  # parsing all takes seconds
        for node in ast.walk(ast.parse(text)) if called else ():
            name = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if name in ("print", "eval", "exec", "input"):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}")
    assert found == []


def test_nothing_is_unpickled():
    unsafe = re.compile(r"weights_only\s*=\s*False|pickle\.loads?\(|allow_pickle\s*=\s*True")
    between_our_processes = PACKAGE / "crew" / "shared.py"
    assert [str(path) for path in sources() if unsafe.search(path.read_text(encoding="utf-8"))] == [
        str(between_our_processes)
    ]
