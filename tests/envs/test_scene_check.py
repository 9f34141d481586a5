"""Recorded scenes: the files that they may name, and how many values they may need."""

import pytest

from imitate.envs.scene_check import MOST_VALUES, check_scene
from imitate.errors import EnvError
from imitate.system.trust import VARIABLE


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a scene; the simulator's folder is ``sim``, and the environment's own scene names ``own/a.stl``."""
    monkeypatch.setenv(VARIABLE, "")
    for folder in ("sim", "own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.stl").write_text("")
    (tmp_path / "sim" / "link.stl").symlink_to(tmp_path / "other" / "a.stl")
    own = f"<mujoco><mesh file='{tmp_path}/own/a.stl'/></mujoco>"

    def run(inner, root=tmp_path):
        xml = f"<mujoco>{inner.format(root=root)}</mujoco>"
        check_scene(xml, "Lift", tmp_path / "sim", lambda: own)

    return run


@pytest.mark.parametrize(
    ("file", "allowed"),
    [
        ("{root}/sim/a.stl", True),
        ("{root}/sim/sub/missing.stl", True),
        ("{root}/own/b.stl", True),
        ("{root}/other/a.stl", False),
        ("{root}/sim/../other/a.stl", False),
        ("{root}/sim/link.stl", False),
        ("{root}/sim", False),  # a folder
        ("sim/a.stl", False),
    ],
)
@pytest.mark.parametrize("attribute", ["file", "fileup", "fileback"])
def test_files(check, file, allowed, attribute):
    scene = f"<texture {attribute}='{file}'/>"
    if allowed:
        check(scene)
        return
    with pytest.raises(EnvError, match="model_file"):
        check(scene)


@pytest.mark.parametrize(
    "tag",
    [
        *("include", "model", "attach", "plugin", "extension", "replicate", "composite"),
        *("flexcomp", "compiler strippath='true'"),
    ],
)
def test_parts_that_include_or_multiply(check, tag):
    with pytest.raises(EnvError, match=f"has a part <{tag.split()[0]}> that includes"):
        check(f"<body><{tag}/></body>")


def test_a_compiler_may_keep_paths(check):
    check("<compiler strippath='false' angle='radian'/>")


SIDE = 2**14


@pytest.mark.parametrize(
    ("scene", "fits"),
    [
        # a texture has 3 colours, and up to 6 faces
        (f"<texture width='{MOST_VALUES // 18}'/>", True),
        (f"<texture width='{MOST_VALUES // 18 + 1}'/>", False),
        (f"<hfield nrow='{SIDE}' ncol='{SIDE}'/>", True),
        (f"<hfield nrow='{SIDE}' ncol='{SIDE + 1}'/>", False),
        (f"<hfield nrow='{SIDE}' ncol='{SIDE}'/><hfield nrow='1'/>", False),
        (f"<numeric size='{MOST_VALUES}'/>", True),
        (f"<numeric size='{MOST_VALUES + 1}'/>", False),
        (f"<geom size='{MOST_VALUES + 1}'/>", True),  # a length
        ("<size nconmax='100' memory='9G'/>", False),
        (f"<size nkey='{MOST_VALUES}' njmax='-1'/>", True),
        (f"<size nkey='{MOST_VALUES}' njmax='2'/>", False),
        (f"<sensor dim='{MOST_VALUES + 1}'/>", False),
        (f"<sensor nsample='{MOST_VALUES + 1}'/>", False),
        (f"<texture height='{MOST_VALUES}'/>", False),
    ],
)
def test_memory(check, scene, fits):
    assert MOST_VALUES == 268_435_456
    if fits:
        check(scene)
        return
    with pytest.raises(EnvError, match="needs more than 268,435,456 values"):
        check(scene)


def test_no_xml(check):
    with pytest.raises(EnvError, match="model_file is not XML"):
        check("<body>")
