"""Scenes of robosuite 1.4: names, places of files, what MuJoCo 3 refuses."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from imitate.envs import migration
from imitate.envs.migration import migrate_model_xml
from imitate.errors import EnvError

OLD = """<mujoco>
  <option impratio="20" collision="all" apirate="100"/>
  <asset>
    <texture name="wood" file="/old/robosuite/models/assets/arenas/../textures/wood.png"/>
    <texture name="mine" file="/my/own/wood.png"/>
    <mesh name="mount0_pedestal" file="/old/robosuite/models/assets/mounts/meshes/pedestal.stl"/>
    <mesh name="robot0_link0" file="/old/robosuite/models/assets/robots/panda/meshes/link0.stl"/>
    <mesh name="robot0_seen" file="/old/robosuite/models/assets/robots/panda/meshes/seen.stl"/>
  </asset>
  <worldbody>
    <body name="robot0_base">
      <body name="robot0_link0">
        <inertial pos="0 0 0" mass="4" diaginertia="1 1 1"/>
        <geom name="robot0_g0" mesh="robot0_link0"/>
        <geom name="robot0_g0_vis" mesh="robot0_seen" contype="0"/>
        <body name="robot0_link1">
          <joint name="robot0_joint1"/>
          <body name="gripper0_right_gripper"><site name="gripper0_grip_site"/></body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator><general name="gripper0_finger" joint="gripper0_finger_joint"/></actuator>
</mujoco>"""


@pytest.fixture
def assets(tmp_path):
    for name in ("textures/wood.png", "bases/meshes/pedestal.obj", "robots/panda/meshes/link0.stl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_a_scene_of_1_4(assets):
    new, changes = migrate_model_xml(OLD, assets)
    root = ElementTree.fromstring(new)

    def named(tag):
        return [element.get("name") for element in root.iter(tag)]

    assert named("body")[-1] == "gripper0_right_right_gripper"
    assert named("site") == ["gripper0_right_grip_site", "robot0_right_center"]
    assert named("mesh") == ["fixed_mount0_pedestal", "robot0_link0", "robot0_seen"]
    assert root.find("actuator/general").get("joint") == "gripper0_right_finger_joint"
    files = [element.get("file") for element in root.find("asset")]
    assert files == [
        "/old/robosuite/models/assets/textures/wood.png",
        "/my/own/wood.png",
        "/old/robosuite/models/assets/bases/meshes/pedestal.obj",
        "/old/robosuite/models/assets/robots/panda/meshes/link0.stl",
        "/old/robosuite/models/assets/robots/panda/meshes/seen.stl",
    ]
    assert root.find("option").attrib == {"impratio": "20"}
    # The body that carries the first joint's holds the site that controllers measure from.
    assert root.find(".//body[@name='robot0_link0']/site").get("name") == "robot0_right_center"
    # Only what gives no body its inertia may be a shell.
    shells = {mesh.get("name"): mesh.get("inertia") for mesh in root.iter("mesh")}
    assert shells["robot0_link0"] is None and shells["robot0_seen"] == "shell"
    assert (changes["asset paths corrected"], changes["gripper*_ renamed"]) == (2, 4)


def test_a_new_scene_is_left_alone(assets):
    new, _ = migrate_model_xml(OLD, assets)
    assert migrate_model_xml(new, assets) == (new, {})


def test_no_scene(assets):
    with pytest.raises(EnvError, match="not XML"):
        migrate_model_xml("<mujoco", assets)


def scene(assets="", world=""):
    return f"<mujoco><asset>{assets}</asset><worldbody>{world}</worldbody></mujoco>"


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("/a/robosuite/models/assets/textures/wood.png", None),
        (
            "/a/robosuite/models/assets/textures/../textures/wood.png",
            "/a/robosuite/models/assets/textures/wood.png",
        ),
        (
            "robosuite/models/assets/robots/panda/meshes/link0.obj",
            "robosuite/models/assets/robots/panda/meshes/link0.stl",
        ),
        ("/a/robosuite/models/assets/robots/none.stl", None),
        ("/a/robosuite/models/assets/mounts/none.stl", "/a/robosuite/models/assets/bases/none.stl"),
        ("/a/robosuite/models/assets/robosuite/models/assets/textures/wood.png", None),
        ("/a/mounts/wood.png", None),
    ],
)
def test_places_of_files(assets, path, new):
    found, changes = migrate_model_xml(scene(f'<texture name="gripper0_a" file="{path}"/>'), assets)
    texture = ElementTree.fromstring(found).find(".//texture")
    assert texture.get("file") == (new or path)
    assert changes["asset paths corrected"] == (new is not None)
    assert texture.get("name") == "gripper0_right_a" and changes["gripper*_ renamed"] == 1


def test_the_first_ending_that_exists_is_taken(assets):
    for ending in (".png", ".msh", ".stl", ".obj"):
        (assets / f"thing{ending}").touch()
        found, _ = migrate_model_xml(
            scene('<mesh file="robosuite/models/assets/thing.dae"/>'), assets
        )
        assert f"thing{ending}" in found


def test_centers_of_two_robots(assets):
    arms = "".join(
        f'<body name="b{n}"><joint name="free"/><body><joint name="robot{n}_j1"/><body>'
        f'<joint name="robot{n}_j2"/></body></body></body>'
        for n in (0, 11)
    )
    found, changes = migrate_model_xml(
        scene("", f"<body><body><geom/></body>{arms}</body>"), assets
    )
    root = ElementTree.fromstring(found)
    for number in (0, 11):
        (site,) = root.findall(f".//body[@name='b{number}']/site")
        assert site.attrib == {
            "name": f"robot{number}_right_center",
            "size": "0.01",
            "rgba": "0 0 0 0",
        }
    assert changes["site *_center added"] == 2 and len(root.findall(".//site")) == 2


@pytest.mark.parametrize(
    ("inertial", "contype", "shell"),
    [
        ("<inertial/>", ' contype="0"', True),
        ("<inertial/>", "", False),
        ("", ' contype="0"', False),
        ("", "", False),
    ],
)
def test_meshes_without_volume(assets, inertial, contype, shell):
    world = f'<body>{inertial}<geom mesh="m"{contype}/></body>'
    found, changes = migrate_model_xml(scene('<mesh name="m"/>', world), assets)
    assert ElementTree.fromstring(found).find(".//mesh").get("inertia") == (
        "shell" if shell else None
    )
    assert changes["meshes without mass"] == shell


def test_options_and_new_scenes(assets):
    odd = '<mujoco><option mpr_iterations="5" mpr_tolerance="1" collision="a"/><geom collision="b"/></mujoco>'
    found, changes = migrate_model_xml(odd, assets)
    root = ElementTree.fromstring(found)
    assert root.find("option").attrib == {} and root.find("geom").attrib == {"collision": "b"}
    assert changes == {
        f"option {name} removed": 1 for name in ("collision", "mpr_iterations", "mpr_tolerance")
    }
    for name, is_new in (("robot12_left_center", True), ("robot_left_center", False)):
        text = f'<mujoco ><site name="{name}" /></mujoco>'
        assert (migrate_model_xml(text, assets)[0] == text) is is_new


def test_the_installed_package_has_the_files(monkeypatch, tmp_path):
    (tmp_path / "models/assets/textures").mkdir(parents=True)
    (tmp_path / "models/assets/textures/wood.png").touch()
    place = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(migration, "find_spec", lambda name: place if name == "robosuite" else None)
    path = "robosuite/models/assets/textures/wood.jpg"
    assert "wood.png" in migrate_model_xml(scene(f'<texture file="{path}"/>'))[0]
    for missing in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr(migration, "find_spec", lambda name, missing=missing: missing)
        with pytest.raises(EnvError, match="robosuite is not installed; do: "):
            migrate_model_xml(scene())
