"""Checkpoints: what is refused, and what survives."""

import itertools
import json
import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import CheckpointError, UserError
from imitate.policy import checkpoint as checkpoints
from imitate.policy.checkpoint import (
    algo_from_checkpoint,
    checkpoint_dict,
    load_checkpoint,
    save_checkpoint,
)
from tests.forked import Forked
from tests.policy import fuzz
from tests.tiny import tiny_algo

SMALL = Path(__file__).with_name("fixtures") / "small.pth"


def make_checkpoint(seed=0, **shape_metadata):
    algo = tiny_algo(obs={"state": 3}, action=2, seed=seed)
    return checkpoint_dict(
        algo,
        env_metadata={"env_name": "Lift", "type": 1},
        shape_metadata=shape_metadata,
        train_state={"epoch": np.int64(3), "rng": torch.get_rng_state()},
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.pth"
    save_checkpoint(make_checkpoint(action_low=np.full(2, -0.5)), path)
    return path


def test_round_trip_keeps_plain_values(file):
    ckpt = load_checkpoint(file)
    assert ckpt["train_state"]["epoch"] == 3
    assert ckpt["shape_metadata"]["action_low"] == [-0.5, -0.5]
    assert ckpt["env_metadata"]["env_name"] == "Lift"
    assert torch.equal(
        ckpt["model"]["nets"]["policy.mlp.layers.0.weight"],
        make_checkpoint()["model"]["nets"]["policy.mlp.layers.0.weight"],
    )


def test_a_policy_is_built_with_the_shapes_of_its_checkpoint():
    algo = algo_from_checkpoint(make_checkpoint())
    assert (algo.obs_shapes, algo.ac_dim) == ({"state": (3,)}, 2)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.pth: there is no such"):
        load_checkpoint(tmp_path / "gone.pth")


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_checkpoint_cut_short_is_refused(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(CheckpointError, match=r"model\.pth.*(truncated|damaged)"):
        load_checkpoint(file)


def test_flipped_bytes_are_refused_or_change_nothing(tmp_path):
    """Mutations of a file that stays as it is; tools/fuzz_checkpoints.py tries others."""
    file = tmp_path / "model.pth"
    data = SMALL.read_bytes()
    whole = load_checkpoint(SMALL)["model"]["nets"]
    rng = np.random.default_rng(0)
    refused = 0
    for count in (1, 20) * 30:
        broken = bytearray(data)
        for position in rng.integers(len(data), size=count):
            broken[position] ^= 0xFF
        file.write_bytes(broken)
        try:
            nets = load_checkpoint(file)["model"]["nets"]
        except CheckpointError as error:
            refused += 1
            assert "model.pth" in str(error) and len(str(error).splitlines()) == 1
        else:  # the flips hit what is between the entries
            assert all(torch.equal(nets[name], value) for name, value in whole.items())
    assert refused >= 45


def test_every_entry_is_guarded_by_its_checksum(tmp_path):
    file = tmp_path / "model.pth"
    with zipfile.ZipFile(SMALL) as archive:
        for entry in archive.infolist():
            content = archive.read(entry)
            data = SMALL.read_bytes()
            place = data.index(content, entry.header_offset + 30 + len(entry.filename))
            file.write_bytes(data[:place] + bytes([content[0] ^ 1]) + data[place + 1 :])
            with pytest.raises(CheckpointError, match=r"damaged \(the checksum of .* is wrong\)"):
                load_checkpoint(file)


def test_any_error_of_the_unpickler_is_one_line(file, monkeypatch):
    for error in (IndexError(), MemoryError(), LookupError("two\nlines"), RecursionError("deep")):

        def fail(*args, error=error):
            raise error

        monkeypatch.setattr(checkpoints, "read_tensors", fail)
        with pytest.raises(CheckpointError, match=f"damaged .{type(error).__name__}") as caught:
            load_checkpoint(file)
        assert len(str(caught.value).splitlines()) == 1


def test_a_compressed_archive_is_refused_before_it_is_unpacked(file):
    bomb = file.with_name("bomb.pth")
    with zipfile.ZipFile(file) as small, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as large:
        for entry in small.infolist():
            content = bytes(1 << 25) if entry.filename.endswith("data/0") else small.read(entry)
            large.writestr(entry.filename, content)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(CheckpointError, match=r"unpack to 33,\d+,\d+ bytes"):
        load_checkpoint(bomb)


def repeated(ckpt):
    nets = ckpt["model"]["nets"]
    name, weight = next((n, w) for n, w in nets.items() if w.dim() == 2)
    ckpt["model"] = {"nets": {**nets, name: torch.zeros(1).expand(weight.shape)}}


def layers(*sizes):
    def change(ckpt):
        config = json.loads(ckpt["config"])
        config["algo"]["actor_layer_dims"] = sizes
        ckpt["config"] = json.dumps(config)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (layers(30000, 30000), r"requires a tensor of "),
        (layers(10**12), r"requires a tensor of "),
        (layers(17), "do not fit"),
        (repeated, "'nets.policy.* of shape .* has only 4 stored bytes"),
    ],
)
def test_weights_that_are_not_those_of_the_networks_are_refused_before_they_are_made(change, words):
    ckpt = make_checkpoint()
    change(ckpt)
    with pytest.raises(CheckpointError, match=words):
        policy_from_checkpoint(ckpt_dict=ckpt, device="cpu")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    ckpt = make_checkpoint()
    name = "policy.mlp.layers.0.weight"
    ckpt["model"]["nets"][name][3, 1] = value
    save_checkpoint(ckpt, tmp_path / "nan.pth")
    words = f"1 of 48 numbers of 'nets.{name}' are not finite"
    with pytest.raises(CheckpointError, match=f"nan.pth: {words}"):
        load_checkpoint(tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match=f"ckpt_dict: {words}"):
        policy_from_checkpoint("cpu", ckpt_dict=ckpt)
    ckpt = make_checkpoint()
    ckpt["preprocess"]["obs"]["state"]["scale"][1] = value
    with pytest.raises(CheckpointError, match="'preprocess.obs.state.scale' are not finite"):
        policy_from_checkpoint("cpu", ckpt_dict=ckpt)


def test_large_finite_weights_are_taken():
    ckpt = make_checkpoint()
    ckpt["model"]["nets"]["policy.mlp.layers.0.weight"][:] = 3e38
    policy_from_checkpoint("cpu", ckpt_dict=ckpt)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("shape_metadata", "ac_dim"), "7", "'shape_metadata.ac_dim' of the checkpoint"),
        (("shape_metadata", "all_shapes", "state"), [0], "'shape_metadata.all_shapes.state"),
        (("shape_metadata", "action_low"), [float("nan")] * 2, "'shape_metadata.action_low.0'"),
        (
            ("shape_metadata", "action_low"),
            [0.0],
            "'action_low' .* has 1 numbers, but an action .* has 2",
        ),
        (("model",), [], "'model' of the checkpoint"),
        (("model", "nets"), {"a": 1}, "'model.nets.a' of the checkpoint"),
        (("preprocess", "obs", "state", "modality"), 3, "'preprocess.obs.state.modality'"),
        (("config",), "[1]", "'config' of the checkpoint: .*is not a JSON object"),
        (("config",), '{"algo_name"', "'config' of the checkpoint"),
        (("config",), "[" * 100_000, "'config' of the checkpoint"),
        (("format_version",), "1", "'format_version' of the checkpoint"),
        (("env_metadata", "env_kwargs"), 3, "'env_metadata.env_kwargs'"),
        (("algo_name",), "bcc", "bcc"),
    ],
)
def test_parts_of_another_type_are_named(tmp_path, path, value, words):
    file = tmp_path / "x.pth"
    save_checkpoint(fuzz.swapped(make_checkpoint(), path, value), file)
    with pytest.raises(CheckpointError, match=words) as caught:
        policy_from_checkpoint("cpu", file)
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["bc", "flow_policy"])
def test_swapped_values_are_used_or_refused(tmp_path, name):
    """A fixed part of what tools/fuzz_checkpoints.py tries."""
    file, ckpt = tmp_path / "x.pth", fuzz.plain_checkpoint(name)
    save_checkpoint(ckpt, file)
    assert fuzz.use(file) is None
    refused = 0
    for _, swapped in list(fuzz.all_swaps(ckpt))[::397]:
        save_checkpoint(swapped, file)
        refused += fuzz.use(file) is not None
    assert refused >= 4


def test_an_end_that_names_other_disks_is_damage(file):
    """zipfile raises for it instead of saying no: a locator of a 64-bit end whose archive has three disks."""
    data = bytearray(file.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    locator = b"PK\x06\x07" + (0).to_bytes(4, "little") + bytes(8) + (3).to_bytes(4, "little")
    file.write_bytes(bytes(data[:end]) + locator + bytes(data[end:]))
    with pytest.raises(CheckpointError, match="model.pth"):
        load_checkpoint(file)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def test_a_pickle_payload_is_refused_and_not_run(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "evil.pth"
    torch.save({"format_version": 1, "model": Payload(marker)}, path)
    with pytest.raises(CheckpointError, match=r"evil\.pth: .* contains Python objects"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError, match=r"evil\.pth"):
        load_checkpoint(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 3}, "in format 3 by imitate .*reads up to 2: upgrade imitate"),
        ({"format_version": 3, "versions": None}, "by imitate an unknown version; this"),
        ({"format_version": None}, "format_version"),
        ({"model": None}, "missing: model"),
    ],
)
def test_foreign_and_newer_files_are_refused(tmp_path, change, words):
    ckpt = {**make_checkpoint(), **change}
    torch.save({k: v for k, v in ckpt.items() if v is not None}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("recorded", "env_kwargs", "rate"),
    [
        (20, {"control_freq": 10}, 20.0),
        (None, {"control_freq": 0.5}, 0.5),
        (None, {}, None),
        (None, None, None),
        (0, {}, None),
        (-5.0, {}, None),
        (True, {}, None),
        ("20", {}, None),
    ],
)
def test_the_rate_of_the_data(recorded, env_kwargs, rate):
    ckpt = {
        "shape_metadata": {"control_freq": recorded},
        "env_metadata": {"env_kwargs": env_kwargs},
    }
    found = checkpoints.control_freq_of(ckpt)
    assert found == rate and isinstance(found, float | None)


def test_parts_that_are_not_given():
    ckpt = checkpoint_dict(tiny_algo(), env_metadata={"a": (Path("b"),)}, shape_metadata={})
    assert (ckpt["format_version"], ckpt["environments"]) == (1, [{"a": ["b"]}])
    assert (ckpt["train_state"], ckpt["provenance"], ckpt["language"]) == ({}, {}, None)
    assert ckpt["shape_metadata"] == {"ac_dim": 1, "all_shapes": {"s": [3]}}
    given = checkpoint_dict(
        tiny_algo(), env_metadata={}, shape_metadata={}, environments=[], model={"nets": {}}
    )
    assert (given["environments"], given["model"]) == ([], {"nets": {}})


def test_the_newest_format_is_read(tmp_path):
    torch.save({**make_checkpoint(), "format_version": 2}, tmp_path / "x.pth")
    assert load_checkpoint(tmp_path / "x.pth")["format_version"] == 2


def test_either_a_path_or_a_dict():
    with pytest.raises(CheckpointError, match="either"):
        policy_from_checkpoint()


def test_a_full_disk_leaves_the_earlier_checkpoint(file, monkeypatch):
    before = file.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.torch, "save", full)
    with pytest.raises(CheckpointError, match=r"model\.pth.*No space left.*earlier checkpoints"):
        save_checkpoint(make_checkpoint(seed=1), file)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["model.pth"]


def save_forever(say, path):
    for number in itertools.count():
        save_checkpoint({"n": number, "x": torch.full((200_000,), float(number))}, path)
        say(number)


def test_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "last.pth"
    with Forked(save_forever, path) as process:
        for _ in range(5):
            process.line()
    saved = torch.load(path, weights_only=True)
    assert saved["n"] >= 4 and torch.all(saved["x"] == saved["n"])


def test_permissions_are_those_of_any_new_file(file):
    """A temporary file is private; a checkpoint is as readable as the user's umask says."""
    other = file.parent / "other"
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode


# ---- checkpoints of other toolkits, with converters whose results are given ------------------------


@pytest.fixture
def converters(monkeypatch):
    """Replaces the converters by functions that return this algorithm, or raise this error."""
    algo = tiny_algo(obs={"state": 3}, action=2)
    parts = {"env_metadata": {"env_name": "E"}, "shape_metadata": {"names": None}}

    def be(error=None):
        asked = []

        def convert(name, given):
            asked.append((name, given))
            if error is not None:
                raise error
            return SimpleNamespace(algo=algo, parts=parts)

        for module, name in (
            ("robomimic.importing", "from_robomimic"),
            ("tdmpc2", "from_tdmpc2"),
            ("lerobot.importing", "from_lerobot"),
        ):
            place = f"imitate.interop.{module}.{name}"
            monkeypatch.setattr(place, lambda given, name=name: convert(name, given))
        monkeypatch.setattr(checkpoints, "_is_robomimic", lambda ckpt: "theirs" in ckpt)
        monkeypatch.setattr(checkpoints, "lerobot_policy", lambda path: path / "model")
        return asked

    return be


NETS = {"_dynamics.0.weight": 0, "_pi.0.weight": 0}


@pytest.mark.parametrize(
    ("ckpt", "converter"),
    [
        ({"theirs": 1}, "from_robomimic"),
        (NETS, "from_tdmpc2"),
        ({"model": {**NETS, "more": 0}}, "from_tdmpc2"),
        ({"model": {"_pi.0.weight": 0}}, None),
        ({"model": [1]}, None),
    ],
)
def test_which_toolkit_wrote_a_checkpoint(converters, ckpt, converter):
    asked = converters()
    found = checkpoints.converted(ckpt)
    if converter is None:
        assert found == ckpt and found is not ckpt and asked == []
    else:
        assert asked == [(converter, ckpt)]
        assert (found["algo_name"], found["env_metadata"]) == ("bc", {"env_name": "E"})


def test_a_folder_of_lerobot_is_converted(converters, tmp_path):
    asked = converters()
    assert load_checkpoint(tmp_path)["env_metadata"] == {"env_name": "E"}
    assert asked == [("from_lerobot", tmp_path / "model")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("no such layer"), "{} cannot be converted: no such layer"),
        (KeyError("x\ny"), "{} has unexpected content and cannot be converted (KeyError: 'x\\ny')"),
    ],
)
def test_checkpoints_that_cannot_be_converted(converters, tmp_path, error, words):
    converters(error)
    for toolkit, call in (
        (
            "m.pth: this checkpoint of robomimic",
            lambda: checkpoints.converted({"theirs": 1}, "m.pth"),
        ),
        ("ckpt_dict: this checkpoint of TD-MPC2's authors", lambda: checkpoints.converted(NETS)),
        (f"{tmp_path / 'model'}: this policy of LeRobot", lambda: load_checkpoint(tmp_path)),
    ):
        with pytest.raises(CheckpointError) as caught:
            call()
        assert str(caught.value) == words.format(toolkit)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("first\n  last line "), "last line"),
        (KeyError(), "KeyError"),
    ],
)
def test_weights_that_cannot_be_loaded_are_said_in_a_line(monkeypatch, error, words):
    def fail(*given):
        raise error

    monkeypatch.setattr(checkpoints, "load_model", fail)
    with pytest.raises(CheckpointError) as caught:
        algo_from_checkpoint(make_checkpoint(), source="a.pth")
    wanted = f"a.pth: the checkpoint's weights do not fit its configuration: {words}"
    assert str(caught.value) == wanted


def test_an_observation_without_preparation_is_refused():
    ckpt = make_checkpoint()
    other = tiny_algo(obs={"place": 3}, action=2)
    ckpt["preprocess"] = other.preprocess.to_dict()
    with pytest.raises(CheckpointError, match="'state' of the configuration is missing in 'prep"):
        algo_from_checkpoint(ckpt)


@pytest.mark.parametrize(
    ("shape", "env", "rate"),
    [
        ({"control_freq": 5}, {"env_kwargs": {"control_freq": 9}}, 5.0),
        ({}, {"env_kwargs": {"control_freq": 9.5}}, 9.5),
        ({"control_freq": 0}, {}, None),
        ({"control_freq": 0.5}, {}, 0.5),
        ({"control_freq": True}, {}, None),
        ({"control_freq": "5"}, {}, None),
        ({}, {"env_kwargs": None}, None),
        ({}, {}, None),
    ],
)
def test_the_control_rate_of_a_checkpoint(shape, env, rate):
    assert checkpoints.control_freq_of({"shape_metadata": shape, "env_metadata": env}) == rate
