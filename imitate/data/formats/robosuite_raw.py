"""robosuite's own recordings, ``demo.hdf5``: states, actions and the scene, but no observations.

    /data           attrs  env, env_info (JSON), repository_version, date, time
      /demo_<n>     attrs  model_file (XML), ep_meta (JSON, since 1.5)
        states (T, S), actions (T, A)

``states[t]`` is from before ``actions[t]``. Observations, rewards and terminals come from the simulator: a function
given to :func:`imitate.data.formats.convert.convert` replays the states in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import ConversionReport, Format, OpenedDataset, Options
from imitate.data.formats.robomimic import first_demo, open_source
from imitate.errors import DatasetError
from imitate.system.plain_files import json_value

_ROBOSUITE = 1


def _recognises(path: Path) -> bool:
    with hdf5_tree.peeked(path) as file:
        demo = first_demo(file)
        return demo is not None and "env" in demo.parent.attrs and "obs" not in demo


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with hdf5_tree.opened(path) as file:
        data = file.get("data")
        attrs = hdf5_tree.attributes(data) if isinstance(data, h5py.Group) else {}
        source = open_source(file, path, report)
        source.env_meta = _env_meta(attrs, path)
        report.synthesised.pop("env_args", None)
        report.renamed.update({"env": "env_args.env_name", "env_info": "env_args.env_kwargs"})
        report.renamed["repository_version"] = "env_args.env_version"
        # The images are rendered anew, in the convention of the installed simulator.
        for name in ("env", "env_info", "repository_version", "macros_image_convention"):
            source.attrs.pop(name, None)
        yield source


def _env_meta(attrs: dict[str, Any], path: Path) -> dict[str, Any]:
    if "env" not in attrs:
        raise DatasetError(
            f"{path}: group 'data' has no attribute 'env', so it is not a file recorded by robosuite"
        )
    try:
        kwargs = json_value(attrs.get("env_info", "{}"))
    except (TypeError, ValueError):
        kwargs = None
    if not isinstance(kwargs, dict):
        raise DatasetError(
            f"{path}: attribute 'env_info' of group 'data' is not a JSON object: write robosuite.make's arguments there"
        )
    kwargs.pop("env_name", None)
    return {
        "env_name": str(attrs["env"]),
        "env_version": str(attrs.get("repository_version", "")),
        "type": _ROBOSUITE,
        "env_kwargs": kwargs,
    }


FORMAT = Format(
    name="robosuite",
    summary="robosuite's raw recordings (demo.hdf5): states, replayed for observations",
    recognises=_recognises,
    read=_read,
    options=frozenset({"workers"}),
    needs_replay=True,
)
