"""Scenes of robosuite 1.4: names, places of files, what MuJoCo 3 refuses."""

import xml.etree.ElementTree as ElementTree

import pytest

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
