"""No name in a file leads to a call: one door, and a table of all places where the source imports or calls by name."""

import ast
import json
import os
import pickle
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from imitate.envs import make_env
from imitate.errors import EnvError, UserError
from imitate.system.trust import VARIABLE, check_trusted, trust, trust_env, untrusted

ROOT = Path(__file__).parents[2]
SIM = {"env_name": "robot:sim", "type": 4}
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


class Payload:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def described(name, kwargs=None, kind=2):
    return {"env_name": name, "type": kind, "env_kwargs": kwargs or {}}


def simulated(**kwargs):
    return {**SIM, "env_kwargs": {"options": {"env_meta": PENDULUM}, **kwargs}}


REFUSED = {
    "factory of an imported module": (described("pettingzoo:os:system", {"command": "true"}), "os"),
    "factory of ours": (described("pettingzoo:imitate.crew.shared:unpickle", {"data": b""}), "imitate.crew.shared"),
    "another factory of pettingzoo": (described("pettingzoo:pettingzoo.utils:wrappers"), "pettingzoo.utils:wrappers"),
    "parallel_env of a stranger": (described("pettingzoo:stranger"), "stranger"),
    "an imported module": (described("json:A-v0"), "json"),
    "a module of ours": (described("imitate.crew.shared:A-v0"), "imitate.crew.shared"),
    "a submodule of an extra": (described("metaworld.evil:A-v0"), "metaworld.evil"),
    "module in the arguments": (described("CartPoleNoVelocity-v1", {"env_id": "evil:A-v0"}), "evil:A-v0"),
    "module in deep arguments": (described("Lift", {"a": [{"b": ("os.system",)}]}, 1), "os.system"),
    "path": (described("Ant-v5", {"xml_file": "/tmp/a.xml"}), "/tmp/a.xml"),
    "path in bytes": (described("Ant-v5", {"xml_file": b"../a"}), "../a"),
    "name of a file": (described("Ant-v5", {"xml_file": "a.xml"}), "a.xml"),
    "module and a name with a blank": (described("CartPoleNoVelocity-v1", {"env_id": "evil:A v0"}), "evil:A v0"),
    "module that begins with a digit": (described("CartPoleNoVelocity-v1", {"env_id": "3evil:A-v0"}), "3evil:A-v0"),
    "module with a hyphen": (described("CartPoleNoVelocity-v1", {"env_id": "my-evil:A-v0"}), "my-evil:A-v0"),
    "name of a file with a blank": (described("Ant-v5", {"xml_file": "a b.xml"}), "a b.xml"),
    "home": (described("Ant-v5", {"xml_file": "~root"}), "~root"),
    "opponent": (described("pettingzoo:imitate.envs.worlds.team_tasks", {"opponents": {"left": "a/b.pth"}}), "a/b.pth"),
    "opponent without a folder": (
        described("pettingzoo:imitate.envs.worlds.team_tasks", {"opponents": {"left": "b"}}),
        "b",
    ),
    "opponent of an expression without end": (
        described("pettingzoo:imitate.envs.worlds.team_tasks", {"opponents": {"(\\w|\\w)*!": "random"}}), "(\\w|\\w)*!"
    ),
    "a blank before the simulated robot": (described(" robot:sim:A-v0"), "robot:sim"),
    "robot": (described("robot:my_robots:Arm", kind=4), "robot:my_robots:Arm"),
    "robot with the beginning of the simulated one": (described("robot:simple", kind=4), "robot:simple"),
    "device": (simulated(take_over="subprocess:Popen", take_over_options={"args": ["true"]}), "subprocess:Popen"),
    "device in a file": (simulated(take_over="a.py:Hand"), "a.py:Hand"),
    "device that is not installed": (simulated(take_over="nobody"), "nobody"),
    "options of a device": (simulated(take_over="lerobot:arm", take_over_options={"port": "/dev/x"}), "/dev/x"),
    "reward": (simulated(reward="os:getcwd"), "os:getcwd"),
    "simulated environment": (simulated(options={"env_meta": described("evil:A-v0")}), "evil"),
    "robot in a simulated one": (simulated(options={"env_meta": described("robot:arm", kind=4)}), "robot:arm"),
}  # fmt: skip


@pytest.mark.parametrize(("meta", "name"), REFUSED.values(), ids=REFUSED)
def test_a_name_of_a_file_is_refused_until_the_user_gives_it_too(meta, name):
    words = re.escape(f"--trust {shlex.quote(name)}")
    with pytest.raises(EnvError, match=words):
        check_trusted(meta)
    with pytest.raises(EnvError, match=words):
        make_env(meta, team=True)
    assert os.environ[VARIABLE] == ""
    trust(*(named.name for named in untrusted(meta)))
    check_trusted(meta)


@pytest.mark.parametrize(("meta", "words"), [
    (described("FrozenLake-v1", {"map_name": "evil"}), "does not accept its env_kwargs"),
    (simulated(limits="evil"), "limits'] is 'evil'; expected a dict"),
])  # fmt: skip
def test_arguments_that_a_constructor_cannot_take_are_one_line(meta, words):
    with pytest.raises(EnvError, match=words):
        make_env(meta)


@pytest.mark.parametrize(
    "meta",
    [
        described("Pendulum-v1", {"g": 9.81, "render_mode": "rgb_array"}),
        described("Lift", {"robots": ["Panda"], "controller_configs": {"type": "OSC_POSE", "interpolation": None}}, 1),
        described("gymnasium_robotics:FetchReach-v4"),
        described("metaworld:push-v3"),
        described("pettingzoo:imitate.envs.worlds.team_tasks"),
        described("pettingzoo:pettingzoo.butterfly.pistonball_v6:parallel_env", {"n_pistons": 5}),
        simulated(take_over="expert:Lift", take_over_options={"seed": 3}),
        simulated(take_over="keyboard"),
    ],
    ids=lambda meta: meta["env_name"],
)  # fmt: skip
def test_registries_need_no_trust(meta):
    check_trusted(meta)


@pytest.mark.parametrize(("given", "meta", "name"), [
    ("os", described("pettingzoo:os:system"), "os:system"),
    ("my_tools", simulated(take_over="my_tools:Hand"), "my_tools:Hand"),
    ("my_tools", simulated(reward="my_tools:reward"), "my_tools:reward"),
    ("my_robots", described("robot:my_robots:Arm", kind=4), "robot:my_robots:Arm"),
    ("/tmp", described("Ant-v5", {"xml_file": "/tmp/a.xml"}), "/tmp/a.xml"),
])  # fmt: skip
def test_a_trusted_module_may_be_imported_but_only_whole_names_are_called(given, meta, name):
    trust(given)
    with pytest.raises(EnvError, match=re.escape(f"--trust {name}")):
        check_trusted(meta)


@pytest.mark.parametrize("kwargs", ["abc", [["opponents", {"(((a+)+)+)+b": "a_checkpoint"}]]])
def test_arguments_that_are_no_dict_are_refused(kwargs):
    with pytest.raises(EnvError, match=r"env_kwargs'\] is a (str|list); expected a dict"):
        make_env(described("pettingzoo:pettingzoo.mpe", kwargs), team=True)


def test_what_the_user_names_is_trusted_whole_with_paths_and_commas():
    meta = described("pettingzoo:my_games:make", {"rules": "/home/me/a,b.json"})
    trust_env(meta)
    check_trusted(meta)
    assert os.environ[VARIABLE] == "/home/me/a%2Cb.json,my_games,my_games:make"
    with pytest.raises(EnvError, match="cannot be imported"):
        make_env(meta, team=True)


def test_a_name_of_two_lines_is_shown_in_one():
    with pytest.raises(EnvError, match=r"^evil:\\nerror: A-v0: a file names [^\n]*$"):
        check_trusted(described("evil:\nerror: A-v0"))


def test_all_names_that_are_missing_stand_in_one_message():
    meta = described("robot:arm", {"reward": "a:b", "options": {"port": "/dev/ttyUSB0"}}, 4)
    with pytest.raises(EnvError, match="--trust robot:arm --trust a:b --trust /dev/ttyUSB0"):
        check_trusted(meta)


def test_zarr_arrays_stored_as_pickles_are_refused(tmp_path, monkeypatch):
    zarr, pickles = pytest.importorskip("zarr"), pytest.importorskip("numcodecs.pickles")
    from imitate.data.formats.convert import convert

    monkeypatch.setattr(
        pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False
    )  # as before numcodecs 0.16.6
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=2)
    root.create_group("data").create_array("action", data=np.zeros((2, 1)))
    root.create_group("meta").create_array("episode_ends", data=np.array([2]))
    folder = tmp_path / "x.zarr" / "meta" / "episode_ends"
    tree = json.loads((folder / ".zarray").read_text())
    tree |= {
        "dtype": "|O",
        "fill_value": "",
        "filters": [{"id": "vlen-utf8"}],
        "compressor": {"id": "pickle"},
    }
    (folder / ".zarray").write_text(json.dumps(tree))
    (folder / "0").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(UserError, match="is packed by .* pickle"):
        convert(tmp_path / "x.zarr", tmp_path / "y.hdf5")
    assert not (tmp_path / "ran").exists()


# ---- the table of SECURITY.md ------------------------------------------------------------------------

BY_NAME = {
    "import_module", "__import__", "spec_from_file_location", "exec_module", "run_path", "run_module", "eval", "exec",
    "entry_points", "installed_points", "EntryPoint", "typed_object", "module_of_env",
}  # fmt: skip
OWNED = {
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("gymnasium", "make"),
    ("robosuite", "make"),
    ("torch", "load"),
}


MENTIONED = re.compile("|".join([*BY_NAME, *map(r"\b{0[0]}\.{0[1]}".format, OWNED)]))


def calls_by_name(text):
    """Number of calls that import, unpickle, or look something up by a name which is not a literal."""
    count = 0
    if not MENTIONED.search(text):  # parsing all takes seconds
        return count
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        is_literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
        plain = name in BY_NAME and not (
            name in ("eval", "exec") and isinstance(node.func, ast.Attribute)
        )
        count += not is_literal and (plain or (owner, name) in OWNED)
    return count


@pytest.mark.slow("the whole package is parsed")
def test_each_place_that_imports_or_calls_by_name_stands_in_the_table():
    found = Counter({
        str(path.relative_to(ROOT)): number
        for room in ("imitate", "plugins")
        for path in sorted((ROOT / room).rglob("*.py"))
        if (number := calls_by_name(path.read_text(encoding="utf-8")))
    })  # fmt: skip
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", (ROOT / "SECURITY.md").read_text(), re.M)
    assert {path: int(number) for path, number in rows} == dict(found)


def test_the_search_finds_what_it_looks_for():
    text = "import_module(a); import_module('b'); x.eval(); eval(c); pickle.loads(d); json.loads(e); gymnasium.make(f)"
    assert calls_by_name(text) == 4
