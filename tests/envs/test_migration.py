"""Descriptions of environments as robomimic's files hold them, for robosuite 1.5.2."""

import copy
import logging

import numpy as np
import pytest

from imitate.collect.action_file import arm_controllers
from imitate.envs import make_env, migration
from imitate.envs.migration import fitted, migrate_env_args, version_note
from imitate.errors import EnvError

# What robomimic's low_dim files for robosuite 1.4.1 say.
OLD_CONTROLLER = {
    **{"type": "OSC_POSE", "input_max": 1, "input_min": -1},
    "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
    "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
    **{"kp": 150, "damping": 1, "impedance_mode": "fixed"},
    **{"kp_limits": [0, 300], "damping_limits": [0, 10]},
    **{"position_limits": None, "orientation_limits": None, "uncouple_pos_ori": True},
    **{"control_delta": True, "interpolation": None, "ramp_ratio": 0.2},
}
KWARGS = {
    **{"has_renderer": False, "has_offscreen_renderer": False, "ignore_done": True},
    **{"use_object_obs": True, "use_camera_obs": False, "control_freq": 20},
    **{"controller_configs": OLD_CONTROLLER, "robots": ["Panda"], "reward_shaping": False},
    **{"camera_depths": False, "camera_heights": 84, "camera_widths": 84},
}
OLD = {"env_name": "Lift", "env_version": "1.4.1", "type": 1, "env_kwargs": KWARGS}
# What those for 1.5.1 say: the old keys are still there, without effect.
RIGHT = {**OLD_CONTROLLER, "input_ref_frame": "world", "gripper": {"type": "GRIP"}}
BASIC = {"type": "BASIC", "body_parts": {"right": RIGHT}}
V15 = {
    **OLD,
    "env_version": "1.5.1",
    "env_kwargs": {**KWARGS, "lite_physics": False, "controller_configs": BASIC},
}
NEW_CONTROLLER = {
    **{key: OLD_CONTROLLER[key] for key in OLD_CONTROLLER if not key.startswith("damping")},
    **{"input_type": "delta", "input_ref_frame": "world", "gripper": {"type": "GRIP"}},
}
del NEW_CONTROLLER["control_delta"]
CAMERAS = {"camera_names": ["agentview", "robot0_eye_in_hand"], "render_gpu_device_id": 0}
DRAWN = {"has_offscreen_renderer": True, "use_camera_obs": True, **CAMERAS}


def with_kwargs(**kwargs):
    return {**OLD, "env_kwargs": {**KWARGS, **kwargs}}


def arm_of(env_args, version="1.5.2"):
    new, _ = migrate_env_args(env_args, version)
    return new["env_kwargs"]["controller_configs"]["body_parts"]["right"]


@pytest.mark.parametrize("old", [OLD, V15])
def test_robomimics_files(old):
    before = copy.deepcopy(old)
    new, changes = migrate_env_args(old, "1.5.2")
    basic = {"type": "BASIC", "body_parts": {"right": NEW_CONTROLLER}}
    kwargs = {**KWARGS, "lite_physics": False, "controller_configs": basic}
    assert new == {**OLD, "env_version": "1.5.2", "env_kwargs": kwargs}
    assert old == before
    assert migrate_env_args(new, "1.5.2") == (new, [])
    assert str(changes[-1]).endswith('-> "1.5.2" (the installed one)')


def test_changes_are_told_key_by_key():
    _, changes = migrate_env_args(OLD, "1.5.2")
    arm = "env_kwargs.controller_configs.body_parts.right"
    assert [(change.key, change.old, change.new) for change in changes] == [
        ("env_kwargs.lite_physics", "absent", "false"),
        ("env_kwargs.controller_configs", "flat OSC_POSE", "BASIC, body_parts.right: OSC_POSE"),
        (f"{arm}.damping", "1", "absent"),
        (f"{arm}.damping_limits", "[0, 10]", "absent"),
        (f"{arm}.control_delta", "true", 'input_type "delta"'),
        (f"{arm}.input_ref_frame", "absent", '"world"'),
        ("env_version", '"1.4.1"', '"1.5.2"'),
    ]


def test_absolute_commands_stay_absolute():
    for controller in ({**OLD_CONTROLLER, "control_delta": False}, {**NEW_CONTROLLER}):
        mode = "delta" if "input_type" in controller else "absolute"
        assert arm_of(with_kwargs(controller_configs=controller))["input_type"] == mode
    # A configuration for older files, laid over a description of 1.5: control_delta beside body_parts.
    laid_over = copy.deepcopy(V15)
    laid_over["env_kwargs"]["controller_configs"]["control_delta"] = False
    assert arm_of(laid_over)["input_type"] == "absolute"


def test_damping_had_an_effect_before_1_2_only():
    old = with_kwargs(controller_configs={**OLD_CONTROLLER, "damping": 2})
    assert "damping_ratio" not in arm_of(old)
    assert arm_of({**old, "env_version": "1.0.1"})["damping_ratio"] == 2
    assert arm_of({**old, "env_version": "1.0.1"})["damping_ratio_limits"] == [0, 10]


def test_no_controller_meant_joint_velocities():
    kwargs = {key: v for key, v in KWARGS.items() if key != "controller_configs"}
    arm = arm_of({**OLD, "env_kwargs": kwargs})
    assert (arm["type"], arm["kp"], arm["output_max"]) == ("JOINT_VELOCITY", 0.03, 0.5)
    new = {**OLD, "env_version": "1.5.0", "env_kwargs": kwargs}
    assert "controller_configs" not in migrate_env_args(new, "1.5.2")[0]["env_kwargs"]


def test_names_that_changed():
    old = with_kwargs(
        robots=["Panda", "Panda"],
        env_configuration="single-arm-opposed",
        controller_configs=[OLD_CONTROLLER, {**OLD_CONTROLLER, "kp": 100}],
        mount_types="default",
        gripper_visualizations=True,
    )
    new, changes = migrate_env_args(old, "1.5.2")
    kwargs = new["env_kwargs"]
    assert (kwargs["env_configuration"], kwargs["base_types"]) == ("opposed", "default")
    assert not kwargs.keys() & {"mount_types", "gripper_visualizations"}
    assert [arm["kp"] for arm in arm_controllers(kwargs)] == [150, 100]
    assert any(change.key.startswith("env_kwargs.controller_configs[1].") for change in changes)


def test_limits_of_goals_are_told_to_be_lost():
    limits = [[0, 0, 0], [1, 1, 1]]
    old = with_kwargs(controller_configs={**OLD_CONTROLLER, "position_limits": limits})
    new, changes = migrate_env_args(old, "1.5.2")
    assert arm_controllers(new["env_kwargs"])[0]["position_limits"] is None
    assert any("position_limits" in change.key and "farther" in change.reason for change in changes)


def test_what_is_left_alone():
    gym = {"env_name": "Pendulum-v1", "type": 2, "env_version": "0.29"}
    newer = {**OLD, "env_version": "1.6.0"}
    for env_args in (gym, newer):
        assert migrate_env_args(env_args, "1.5.2") == (env_args, [])
    assert migrate_env_args(OLD, "1.4.1") == (OLD, [])


@pytest.mark.parametrize(
    ("env_args", "words"),
    [
        ({**OLD, "env_version": "0.3.0"}, "robosuite 0.3.0.*record again"),
        (with_kwargs(robots="Baxter"), "Baxter.*install robosuite 1.4.1"),
        (with_kwargs(controller_configs="OSC_POSE"), 'controller_configs.*"OSC_POSE"'),
    ],
)
def test_what_cannot_be_translated(env_args, words):
    with pytest.raises(EnvError, match=words):
        migrate_env_args(env_args, "1.5.2")


def test_a_mismatch_is_one_line_that_names_the_command():
    note = version_note(OLD, "1.5.2")
    assert "recorded with robosuite 1.4.1, 1.5.2 is installed" in note
    assert "imitate dataset migrate-env" in note and "\n" not in note
    unversioned = {key: value for key, value in OLD.items() if key != "env_version"}
    assert "before robosuite 1.5" in version_note(unversioned, "1.5.2")
    newer = version_note({**OLD, "env_version": "1.6.0"}, "1.5.2")
    assert "pip install 'robosuite==1.6.0'" in newer
    assert version_note(V15, "1.5.2") is None
    assert version_note({**OLD, "type": 2}, "1.5.2") is None


@pytest.mark.robosuite
def test_environments_are_translated_and_say_so(caplog):
    with caplog.at_level(logging.WARNING, logger="imitate.envs.migration"):
        env = make_env(with_kwargs(**DRAWN))
    assert [record.getMessage() for record in caplog.records] == [version_note(OLD)]
    assert env.action_dim == 7
    caplog.clear()
    meta = env.serialize()
    assert meta["env_kwargs"]["lite_physics"] is False  # the physics stepping of then
    assert meta["env_kwargs"]["has_offscreen_renderer"] is False
    start, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(np.array([1.0, 0, 0, 0, 0, 0, 0]))
    move = obs["robot0_eef_pos"] - start["robot0_eef_pos"]
    assert move[0] > 0.02
    assert np.abs(move[1:]).max() < 0.01
    env.close()
    assert fitted(meta) == meta
    assert not caplog.records


# ---- versions and keys, one by one ---------------------------------------------------------------


def lift(version=None, env_type=1, **kwargs):
    named = {} if version is None else {"env_version": version}
    return {"env_name": "Lift", "type": env_type, **named, "env_kwargs": kwargs}


FLAT = {"type": "JOINT_TORQUE", "kp": 1}


@pytest.mark.parametrize(
    ("recorded", "installed", "keys"),
    [
        ("1.4.1", "1.4.9", []),
        (
            "1.4.1",
            "1.5",
            ["env_kwargs.lite_physics", "env_kwargs.controller_configs", "env_version"],
        ),
        ("1.5.0", "1.5.0", []),
        ("1.5.0", "1.5.2", ["env_version"]),
        ("1.5", "1.6.0", ["env_version"]),
        ("1.6.0", "1.5.2", []),
        ("2.0.0", "1.9.0", []),
        ("1.10.0", "1.9.0", []),
        (None, "1.5.2", []),
        ("odd", "1.5.2", ["env_version"]),
        ("1", "1.5.2", ["env_version"]),
        ("1.4.1", "dev", []),
        (
            "1.0.0",
            "1.5.2",
            ["env_kwargs.lite_physics", "env_kwargs.controller_configs", "env_version"],
        ),
    ],
)
def test_which_versions_are_translated(recorded, installed, keys):
    new, changes = migrate_env_args(lift(recorded), installed)
    assert [change.key for change in changes] == keys
    assert new.get("env_version") == (installed if "env_version" in keys else recorded)


def test_a_description_without_a_version_is_old_if_its_controller_is():
    new, changes = migrate_env_args(lift(controller_configs=dict(FLAT)), "1.5.2")
    assert new["env_version"] == "1.5.2" and new["env_kwargs"]["lite_physics"] is False
    assert str(changes[0]) == (
        "env_kwargs.lite_physics: absent -> false (the simulation steps before 1.5)"
    )
    assert str(changes[-1]) == 'env_version: absent -> "1.5.2" (the installed one)'
    for configs in ([FLAT], [{"type": "BASIC", "body_parts": {}}, FLAT]):
        assert (
            "lite_physics"
            in migrate_env_args(lift(controller_configs=configs), "1.5")[0]["env_kwargs"]
        )
    for configs in ({"type": "BASIC", "body_parts": {}}, {"type": "OTHER"}, [], None):
        assert migrate_env_args(lift(controller_configs=configs), "1.5")[1] == []
    empty = {"env_name": "Lift", "type": 1, "env_version": "1.4.1", "env_kwargs": None}
    assert migrate_env_args(empty, "1.5.2")[0]["env_kwargs"]["lite_physics"] is False


@pytest.mark.parametrize(
    ("version", "kept"), [("1.1.9", True), ("1.2.0", False), (None, True), ("1.0.0", True)]
)
def test_damping_by_version(version, kept):
    arm = {**FLAT, "damping": 2, "damping_limits": [0, 1]}
    new, changes = migrate_env_args(lift(version, controller_configs=arm), "1.5.2")
    part = new["env_kwargs"]["controller_configs"]["body_parts"]["right"]
    names = {"damping_ratio": 2, "damping_ratio_limits": [0, 1]} if kept else {}
    assert part == {**FLAT, **names, "gripper": {"type": "GRIP"}}
    said = [str(change).rpartition("right.")[2] for change in changes if "damping" in change.key]
    reason = "without effect since 1.2, which uses damping_ratio"
    assert said[0] == (
        "damping: 2 -> damping_ratio 2 (renamed)" if kept else f"damping: 2 -> absent ({reason})"
    )


@pytest.mark.parametrize(
    ("arm", "wanted"),
    [
        (
            {"type": "OSC_POSITION", "control_delta": False},
            {"input_type": "absolute", "input_ref_frame": "world"},
        ),
        (
            {"type": "OSC_POSE", "control_delta": True, "input_type": "absolute"},
            {"input_type": "absolute", "input_ref_frame": "world"},
        ),
        ({"type": "OSC_POSE", "input_ref_frame": "base"}, {"input_ref_frame": "base"}),
        ({"type": "JOINT_POSITION", "control_delta": True}, {"input_type": "delta"}),
        ({"type": "JOINT_VELOCITY", "control_delta": True}, {"control_delta": True}),
        ({"type": "IK_POSE", "control_delta": True}, {"control_delta": True}),
        (
            {"type": "JOINT_TORQUE", "position_limits": [1], "orientation_limits": None},
            {"position_limits": None, "orientation_limits": None},
        ),
    ],
)
def test_arms_by_type(arm, wanted):
    new, changes = migrate_env_args(lift("1.4.1", controller_configs=arm), "1.5.2")
    part = new["env_kwargs"]["controller_configs"]["body_parts"]["right"]
    assert part == {"type": arm["type"], "gripper": {"type": "GRIP"}, **wanted}
    limits = [change for change in changes if "limits" in change.key]
    assert [(c.old, c.new) for c in limits] == (
        [("[1]", "null")] if "position_limits" in arm else []
    )
    modes = [change.new for change in changes if change.key.endswith("control_delta")]
    assert modes == ([f'input_type "{wanted["input_type"]}"'] if "input_type" in wanted else [])


def test_composite_controllers_keep_other_parts():
    parts = {"right": {"type": "OSC_POSE", "control_delta": True}, "base": {"type": "JOINT_X"}}
    parts["torso"] = "none"
    configs = [{"type": "BASIC", "body_parts": parts}, {"type": "OTHER"}]
    new, _ = migrate_env_args(lift("1.5.0", controller_configs=configs), "1.5.2")
    found = new["env_kwargs"]["controller_configs"]
    assert found[1] == {"type": "OTHER"} and found[0]["body_parts"] == {
        "right": {"type": "OSC_POSE", "input_type": "delta"},
        "base": {"type": "JOINT_X"},
        "torso": "none",
    }
    for configs, words in (([3], "is 3: expected"), ("O" * 90, f'is "{"O" * 59}: expected')):
        with pytest.raises(EnvError, match=words):
            migrate_env_args(lift("1.5.0", controller_configs=configs), "1.5.2")


@pytest.mark.parametrize(
    ("kwargs", "wanted"),
    [
        ({"env_configuration": "single-arm-parallel"}, {"env_configuration": "parallel"}),
        ({"env_configuration": "bimanual"}, {"env_configuration": "single-robot"}),
        ({"env_configuration": "default"}, {"env_configuration": "default"}),
        ({"lite_physics": True}, {"lite_physics": True}),
        ({"mount_types": "a", "base_types": "b"}, {"base_types": "b"}),
        ({"camera_depth": True}, {"camera_depths": True}),
        (
            dict.fromkeys(
                ("gripper_visualization", "use_indicator_object", "renderer", "renderer_config"), 1
            ),
            {},
        ),
        ({"robots": "Sawyer"}, {"robots": "Sawyer"}),
    ],
)
def test_arguments_that_changed(kwargs, wanted):
    given = lift("1.4.1", controller_configs={"type": "X", "body_parts": {}}, **kwargs)
    new = migrate_env_args(given, "1.5.2")[0]["env_kwargs"]
    del new["controller_configs"]
    assert new == {"lite_physics": False, **wanted}
    with pytest.raises(EnvError, match="the actions of Baxter are in another order"):
        migrate_env_args(lift("1.4.1", robots=["Panda", "Baxter"]), "1.5.2")


@pytest.mark.parametrize(
    ("env_args", "installed", "words"),
    [
        (lift("1.5.1"), "1.5.2", None),
        (lift("1.5.1"), "1.6.0", "Lift: recorded with robosuite 1.5.1, 1.6.0 is installed; its"),
        (
            lift("1.6.1"),
            "1.5.0",
            "Lift: recorded with robosuite 1.6.1, but 1.5.0 is installed, which may refuse",
        ),
        (lift("1.6.1"), "dev", "recorded with robosuite 1.6.1, dev is installed; its description"),
        (lift(), "1.5.0", None),
        (
            lift(controller_configs=FLAT),
            "1.5.0",
            "Lift: its controller is described as before robosuite 1.5, 1.5.0 is",
        ),
        ({"env_name": "Lift", "type": 1, "env_kwargs": None}, "1.5.0", None),
        (lift("1.4.1", env_type=2), "1.5.0", None),
    ],
)
def test_notes_on_versions(env_args, installed, words, caplog, monkeypatch):
    found = version_note(env_args, installed)
    assert found is None if words is None else words in found
    monkeypatch.setattr(migration, "installed_robosuite", lambda: installed)
    with caplog.at_level(logging.WARNING, logger="imitate.envs.migration"):
        migration.tell_mismatch(env_args)
    assert [record.getMessage() for record in caplog.records] == ([found] if found else [])
    assert fitted(env_args) == migrate_env_args(env_args, installed)[0]


def test_without_robosuite_nothing_is_translated(monkeypatch):
    monkeypatch.setattr(migration, "installed_robosuite", lambda: None)
    assert migrate_env_args(OLD) == (OLD, []) and version_note(OLD) is None
    monkeypatch.undo()

    def missing(name):
        raise migration.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(migration.metadata, "version", missing)
    assert migration.installed_robosuite() is None
    monkeypatch.setattr(migration.metadata, "version", lambda name: f"{name} 1.5")
    assert migration.installed_robosuite() == "robosuite 1.5"
