"""LIBERO's files: one file per task, or a folder of them, which becomes one dataset.

* Observations are recorded after the step: row t of ``obs`` and ``robot_states`` is the result of ``actions[t]``, while
  ``states[t]`` is from before the step. So row t becomes ``next_obs[t]`` and ``obs[t + 1]``, and the first step, which
  has no observation, is dropped. Regenerated files without this lag are recognized by comparing the joint positions in
  ``obs`` and ``states``.
* Images are upside down (OpenGL's convention) unless ``macros_image_convention`` is 'opencv'; they are flipped, and the
  attribute is changed accordingly.
* The instruction is in the JSON of ``problem_info``; it becomes the attribute ``language`` of each demo.
* Observations are renamed to the names of the simulator's environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import ConversionReport, Format, NamedDemo, OpenedDataset, Options
from imitate.data.formats.robomimic import open_source
from imitate.errors import DatasetError
from imitate.system.plain_files import json_value

_NAMES = {
    "agentview_rgb": "agentview_image",
    "eye_in_hand_rgb": "robot0_eye_in_hand_image",
    "eye_in_hand_depth": "robot0_eye_in_hand_depth",
    "gripper_states": "robot0_gripper_qpos",
    "joint_states": "robot0_joint_pos",
    "ee_pos": "robot0_eef_pos",
}
_UPRIGHT, _LOWEST_FIRST = "opencv", "opengl"  # values of macros_image_convention
_JOINTS = slice(1, 8)  # columns of a state with the arm's joint positions; column 0 is the time


def _recognises(path: Path) -> bool:
    files = _files(path)
    if not files:
        return False
    with hdf5_tree.peeked(files[0]) as file:
        data = file.get("data")
        return (
            isinstance(data, h5py.Group)
            and ("bddl_file_name" in data.attrs or "problem_info" in data.attrs)
            and "env" not in data.attrs
        )


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.hdf5")) if path.is_dir() else [path]


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    files = _files(path)
    if not files:
        raise DatasetError(f"{path}: there is no .hdf5 file in this folder")
    with ExitStack() as stack:
        tasks = [
            _Task(stack.enter_context(hdf5_tree.opened(file)), file, number, options, report)
            for number, file in enumerate(files)
        ]
        masks: dict[str, list[str]] = {}
        if len(tasks) > 1:
            report.note(
                f"{len(tasks)} tasks in one file: each has a filter key and a task_id; env_args are those of "
                f"{files[0].name}, the others' BDDL files are attributes of their demos"
            )
        yield OpenedDataset(
            env_meta=tasks[0].source.env_meta,
            demos=_demos(tasks, masks),
            count=sum(task.source.count or 0 for task in tasks),
            masks=masks,
            attrs={
                **tasks[0].source.attrs,
                "images_flipped": tasks[0].flip,
                "macros_image_convention": tasks[0].convention,
            },
        )


def _demos(tasks: list[_Task], masks: dict[str, list[str]]) -> Iterator[NamedDemo]:
    number = 0
    for task in tasks:
        for _, episode in task.source.demos:
            name = f"demo_{number}"
            if len(tasks) > 1:
                masks.setdefault(task.name, []).append(name)
            yield NamedDemo(name, episode)
            number += 1


class _Task:
    """A LIBERO file, which contains the demos of one task."""

    def __init__(
        self, file: h5py.File, path: Path, number: int, options: Options, report: ConversionReport
    ) -> None:
        self.name = path.stem.removesuffix("_demo")
        self.source = open_source(file, path, report, self._converted)
        attrs = self.source.attrs
        is_upright = attrs.get("macros_image_convention", _LOWEST_FIRST) == _UPRIGHT
        self.flip = not is_upright if options.flip_images is None else options.flip_images
        self.convention = _UPRIGHT if is_upright != self.flip else _LOWEST_FIRST
        self._report = report
        self._attrs: dict[str, Any] = {
            "language": options.language or _instruction(attrs.get("problem_info"), self.name),
            "task_id": number,
            "task": self.name,
        }
        if isinstance(attrs.get("bddl_file_name"), str):
            self._attrs["bddl_file_name"] = attrs["bddl_file_name"]
        report.synthesised["attribute language"] = (
            "problem_info.language_instruction, or the name of the file"
        )

    def _converted(self, group: h5py.Group, episode: Episode) -> Episode:
        late = _is_late(episode)
        seen = {
            _NAMES.get(key, key): self._upright(key, value) for key, value in episode.obs.items()
        }
        for key in episode.obs:
            if key in _NAMES:
                self._report.renamed[f"obs/{key}"] = f"obs/{_NAMES[key]}"
        attrs = {**episode.attrs, **self._attrs, "success": True}
        if not late:
            self._report.note(
                "observations are not late in this file (they agree with 'states'): nothing was shifted"
            )
            return replace(episode, obs=seen, attrs=attrs)
        self._report.changed["obs"] = (
            "recorded one step late: row t becomes next_obs[t] and obs[t + 1]"
        )
        self._report.dropped["first step of each demo"] = (
            "the observation before it is not in the file"
        )
        return _shifted(episode, seen, attrs)

    def _upright(self, key: str, value: Any) -> NDArray[Any]:
        values = np.asarray(value)
        if values.ndim < 3 or not self.flip or values.ndim == 3 and not key.endswith("depth"):
            return values
        self._report.changed[f"obs/{_NAMES.get(key, key)}"] = (
            "turned upside down (not with --keep-images)"
        )
        return values[:, ::-1]


def _shifted(episode: Episode, seen: dict[str, NDArray[Any]], attrs: dict[str, Any]) -> Episode:
    def later(value: Any) -> NDArray[Any]:
        return np.asarray(value)[1:]

    steps: dict[str, NDArray[Any]] = {}
    for key, value in episode.steps.items():
        # recorded after the step, like the observations
        steps[key] = np.asarray(value)[:-1] if key == "robot_states" else later(value)
    return Episode(
        obs={key: value[:-1] for key, value in seen.items()},
        next_obs={key: value[1:] for key, value in seen.items()},
        actions=later(episode.actions),
        rewards=later(episode.rewards),
        terminals=later(episode.terminals),
        timeouts=later(episode.timeouts),
        states=None if episode.states is None else later(episode.states),
        attrs=attrs,
        steps=steps,
    )


def _is_late(episode: Episode) -> bool:
    """Return true if observations were recorded after the step, as by LIBERO's own script."""
    if episode.states is None or "joint_states" not in episode.obs:
        return True
    joints, states = np.asarray(episode.obs["joint_states"]), np.asarray(episode.states)
    if len(states) < 2 or states.ndim != 2 or joints.shape[1:] != (7,) or states.shape[1] < 8:
        return True
    now = np.abs(joints[:-1] - states[:-1, _JOINTS]).max()
    late = np.abs(joints[:-1] - states[1:, _JOINTS]).max()
    return bool(late <= now)


def _instruction(problem_info: Any, name: str) -> str:
    """Return the language instruction."""
    try:
        said = json_value(problem_info)["language_instruction"]
    except (TypeError, ValueError, KeyError):
        said = name.replace("_", " ")
    text = "".join(said) if isinstance(said, list) else str(said)
    return text.strip().strip('"')


FORMAT = Format(
    name="libero",
    summary="LIBERO's demonstrations: an HDF5 file per task, or a folder of them",
    recognises=_recognises,
    read=_read,
    options=frozenset({"flip_images", "language"}),
)
