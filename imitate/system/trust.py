"""Checks of the modules and objects that files name: some are always allowed, others only if the user trusts them.

A demonstration file, a checkpoint or a run folder describes environments by ``env_args``, and creating an environment
imports modules and calls factories with arguments. So that no file can choose which code runs, every name in
``env_args`` is checked here:

* Environments come from closed registries: ids that are registered with gymnasium, robosuite's tasks, this package's
    tasks, the modules of its extras, and ``parallel_env`` of ``pettingzoo.*``.
* Registered devices (:func:`registered_device`) are allowed.
* Everything else must be named by the user as well: on the command line, in the configuration of a training, in the
  environment variable ``IMITATE_TRUST_MODULES`` (names separated by commas), or in a file of their own (one name per
  line). A trusted module may be imported, with its submodules; called objects (a factory, a robot, a device, a reward)
  and each path among the arguments must be trusted by their full names.

A module is not trusted only because it is already imported or part of this package. The trust of a process is
stored in its environment variable, which the processes that it starts inherit.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from imitate.errors import EnvError, offered
from imitate.system.extras import installed_points

VARIABLE = "IMITATE_TRUST_MODULES"
ROBOT = "robot:"
"""Prefix of the names of robots."""
SIMULATED = "robot:sim"
"""Name of the simulated robot."""
RAY = "ray:"
"""Prefix of the address of a cluster: ``ray:HOST:PORT``."""
PETTINGZOO = "pettingzoo:"
"""Prefix of the names of environments with several agents, followed by the module."""
PARALLEL = "parallel_env"
"""The only function of a PettingZoo module that is called with arguments from a file."""
RANDOM = "random"
"""Name of the opponent with random actions, which is not a checkpoint."""
EXTRAS = {
    "gym_aloha": "aloha",
    "gymnasium_robotics": "robotics",
    "metaworld": "metaworld",
    "ogbench": "ogbench",
    "pettingzoo": "pettingzoo",
}
"""Modules of environments that this package's extras install."""
TASKS = frozenset({"imitate.envs.worlds.tasks", "imitate.envs.worlds.team_tasks"})
"""This package's own modules that register environments."""
DEVICES = ("keyboard", "gamepad", "spacemouse", "lerobot")
"""This package's own teleoperation devices."""
DEVICE_POINTS = "imitate.teleoperators"
"""Group of entry points by which other packages add devices."""
_REFERENCE = re.compile(r".*[/\\:].*|~.*|\.{1,2}|.*\.[A-Za-z][\w-]*", re.DOTALL)
"""Pattern of a text that could be used as a path, or as the name of a module or of an object in a module."""
_SHORT = re.compile(r"(?=.{1,200}\Z)[^()*+?{}]*(?:[*+?][^()*+?{}]*){0,3}", re.DOTALL)
"""Pattern of regular expressions without groups and with few repetitions, which cannot take long to match."""
_SHOWN = 200
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
"""Pattern of ``module:function``, a user's function in place of a checkpoint."""


class Named(NamedTuple):
    """A name in ``env_args`` that the user has to trust.

    Attributes:
        name: value for ``--trust``.
        kind: "module", or "robot", "device", "reward", "factory", "argument", "cluster".
        where: key in the file that has the name, for messages.
    """

    name: str
    kind: str
    where: str


# ---- trust given by the user -----------------------------------------------------------------------------


def trust(*names: str) -> None:
    """Trust names in this process and in the processes that it starts.

    Args:
        names: modules, environments ``module:Id-v0`` (which trusts the module), ``module:attribute``, robots, paths.
    """
    known = _of_variable()
    for name in filter(None, (name.strip() for name in names)):
        known.add(name)
        if ":" in name and not name.startswith((ROBOT, RAY)):
            known.add(_module_of(name))
    os.environ[VARIABLE] = ",".join(sorted(word.replace(",", "%2C") for word in known if word))


def trust_env(env: str | Mapping[str, Any] | None) -> None:
    """Trust all names in an environment that the user gave, as an id or env_args; None does nothing."""
    if isinstance(env, str):
        env = {"env_name": env.removeprefix(f"{SIMULATED}:")}
    if isinstance(env, Mapping):
        trust(*(named.name for named in names_in(env)))


def trust_given() -> dict[str, str]:
    """Return the environment variable that passes this process's trust to another process."""
    return {VARIABLE: os.environ.get(VARIABLE, "")}


def trust_file() -> Path:
    """Return the path of the user's list of trusted names, one per line; the file need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base else Path.home() / ".config"
    return folder / "imitate" / "trusted_modules.txt"


# ---- names in a file -------------------------------------------------------------------------------


def check_trusted(env_meta: Mapping[str, Any]) -> None:
    """Raise EnvError if env_args contain untrusted names, or if their arguments are not a dict."""
    kwargs = env_meta.get("env_kwargs")
    if kwargs and not isinstance(kwargs, Mapping):
        raise EnvError(f"env_args['env_kwargs'] is a {type(kwargs).__name__}; expected a dict")
    missing = untrusted(env_meta)
    refuse(str(env_meta.get("env_name") or ""), missing)


def untrusted(env_meta: Mapping[str, Any], *, lasting: bool = False) -> list[Named]:
    """Return the names in env_args that are not trusted.

    Args:
        env_meta: env_args of a file.
        lasting: true to accept only names in the user's list, not names that only this process trusts.
    """
    return unknown([named for named in names_in(env_meta) if not _comes_with_trust(named)], lasting)


def check_paths(env_name: str, where: str, paths: Iterable[str]) -> None:
    """Raise EnvError if a path from a file is not trusted.

    Args:
        env_name: name of the environment that would read the path.
        where: key or element of the file that has the path, for the message.
        paths: paths outside of the simulator's folder.
    """
    refuse(env_name, unknown([Named(path, "argument", where) for path in dict.fromkeys(paths)]))


def in_cluster(on: str) -> list[Named]:
    """Return the name of a Ray cluster at an address, whose head can run code in the processes that connect to it."""
    return [Named(on, "cluster", "cluster.on")] if on.startswith(RAY) else []


def in_networks(section: Mapping[str, Any]) -> list[Named]:
    """Return the user's networks and functions that a section ``algo`` and its nested sections name."""
    found = []
    for key, value in section.items():
        named = key in ("reward", "ends", "expert") or (
            key == "checkpoint" and FUNCTION.match(str(value)) and not Path(str(value)).exists()
        )
        if named and isinstance(value, str):
            found.append(Named(value, "function", f"algo.{key}"))
        if key == "networks" and isinstance(value, Mapping):
            names = [(role, name) for role, name in value.items() if isinstance(name, str)]
            found += [Named(name, "network", f"algo.networks.{role}") for role, name in names]
        elif isinstance(value, Mapping):
            found += in_networks(value)
    return found


def in_warmup(name: str) -> list[Named]:
    """Return the user's function that ``train.online.warmup_policy`` names, if it names one."""
    return [Named(name, "function", "train.online.warmup_policy")] if ":" in name else []


def unknown(found: list[Named], lasting: bool = False) -> list[Named]:
    """Return the names that are not trusted; see :func:`untrusted`."""
    known = (set() if lasting else _of_variable()) | _of_file(trust_file()) if found else set()
    return [named for named in found if not _is_known(named, known)]


def names_in(env_meta: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the external names in env_args: modules, robots, devices, factories, paths."""
    waiting: list[Any] = [env_meta]
    while waiting:
        meta = waiting.pop()
        if not isinstance(meta, Mapping):
            continue
        name = str(meta.get("env_name") or "")  # blanks are kept, as gymnasium keeps them
        kwargs = meta.get("env_kwargs")
        kwargs = dict(kwargs) if isinstance(kwargs, Mapping) else {"": kwargs}
        if name.startswith(ROBOT):
            if not is_simulated(name):
                yield Named(name, "robot", "env_name")
            yield from _parts_of_a_robot(kwargs)
            options = kwargs.get("options")
            if isinstance(options, Mapping):
                waiting.append(options.get("env_meta"))
                kwargs["options"] = {k: v for k, v in options.items() if k != "env_meta"}
        elif name.startswith(PETTINGZOO):
            yield Named(_module_of(name), "module", "env_name")
            if name.count(":") > 1 and not name.endswith(f":{PARALLEL}"):
                yield Named(name.removeprefix(PETTINGZOO), "factory", "env_name")
            yield from _opponents(kwargs)
        elif _module_of(name):
            yield Named(_module_of(name), "module", "env_name")
        yield from _references("env_kwargs", kwargs)


def _parts_of_a_robot(kwargs: dict[str, Any]) -> Iterator[Named]:
    """Yield the untrusted device and reward of a robot, and remove them from its arguments."""
    device, reward = kwargs.pop("take_over", None), kwargs.pop("reward", None)
    if device and not registered_device(str(device)):
        yield Named(str(device), "device", "take_over")
    if reward:
        yield Named(str(reward), "reward", "reward")


def _opponents(kwargs: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the checkpoints of opponents, and regular expressions that may take forever to match."""
    opponents = kwargs.get("opponents")
    for expression, policy in opponents.items() if isinstance(opponents, Mapping) else ():
        if not _SHORT.fullmatch(str(expression)):
            yield Named(str(expression), "argument", "env_kwargs.opponents")
        if policy != RANDOM and not _REFERENCE.fullmatch(str(policy)):
            yield Named(str(policy), "argument", "env_kwargs.opponents")


def is_simulated(env_name: str) -> bool:
    """Return true for ``robot:sim`` and ``robot:sim:ENV``, which move no robot."""
    return env_name == SIMULATED or env_name.startswith(f"{SIMULATED}:")


def registered_device(name: str) -> bool:
    """Return true for a device of this package, a scripted expert, or a device of an installed package."""
    kind = name.partition(":")[0]
    if kind in ("expert", "lerobot") or name in DEVICES:
        return True
    return bool(re.fullmatch(r"[\w-]+", name)) and bool(installed_points(DEVICE_POINTS, name))


def _references(where: str, value: Any) -> Iterator[Named]:
    """Yield texts that could be paths or module names, from nested values."""
    waiting = [(where, value)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{where}.{key}" if key else where, part) for key, part in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [(where, part) for part in value]
        else:
            text = os.fsdecode(value) if isinstance(value, bytes | os.PathLike) else value
            if isinstance(text, str) and _REFERENCE.fullmatch(text.strip()):
                yield Named(text.strip(), "argument", where[:80])


# ---- trusted names ---------------------------------------------------------------------------------


def _comes_with_trust(named: Named) -> bool:
    """Return true for a module of this package's tasks or extras, unless a file in the working folder shadows it."""
    module = named.name
    if named.kind != "module":
        return False
    top = module.partition(".")[0]
    below = top == "pettingzoo" and re.fullmatch(r"\w+(\.\w+)*", module) is not None
    if not below and module not in EXTRAS:
        return module in TASKS
    spec = find_spec(top)
    if spec is None:
        return True  # the import will report the missing extra
    here = Path.cwd()
    return spec.origin is not None and here not in list(Path(spec.origin).parents)[:2]


def _is_known(named: Named, known: set[str]) -> bool:
    if named.kind != "module":
        return named.name in known
    return any(named.name == one or named.name.startswith(f"{one}.") for one in known)


def trust_options(missing: Iterable[Named]) -> list[str]:
    """Return the command-line options that trust these names."""
    names = dict.fromkeys(named.name for named in missing)
    return [word for name in names for word in ("--trust", name)]


def refuse(env_name: str, missing: list[Named]) -> None:
    """Raise EnvError for the first of these names, if there is any."""
    if not missing:
        return
    first, name, env_name = missing[0], _shown(missing[0].name), _shown(env_name)
    options = shlex.join(_shown(word) for word in trust_options(missing))
    listed = f"or add a line '{name}' to {trust_file()}"
    if first.kind == "robot":
        itself = f"name it yourself (--env {env_name}), " if offered("--env") else ""
        raise EnvError(
            f"{env_name}: a file names this robot, and connecting to the robot could move it; if you "
            f"want that, {itself}add {options}, {listed}"
        )
    if first.kind == "cluster":
        itself = f"add --on {env_name} or " if offered("--on") else "add "
        raise EnvError(
            f"cluster.on: a file names the cluster {name}, and connecting would let it run code here; if you want "
            f"that, {itself}{options}, {listed}"
        )
    if first.kind == "module":
        raise EnvError(
            f"{env_name}: a file names the module '{name}', and importing the module would run its "
            f"code; if you trust it, add {options}, {listed}"
        )
    what = f"names the {first.kind} '{name}' in {first.where}, and making it would run its code"
    if first.kind == "argument":
        what = f"sets {first.where} to '{name}', a path or the name of a module, which no file may choose"
    raise EnvError(f"{env_name}: a file {what}; if you trust it, add {options}, {listed}")


def _shown(name: str) -> str:
    """Return a name as messages show it: line breaks escaped, and cut off if it is long."""
    name = name.replace("\n", "\\n").replace("\r", "\\r")
    return name if len(name) <= _SHOWN else name[:_SHOWN] + "..."


def _module_of(name: str) -> str:
    """Return the module of ``module:Id-v0`` or ``module:attribute``."""
    if name.startswith(PETTINGZOO):
        return name.removeprefix(PETTINGZOO).partition(":")[0].strip()
    return name.rpartition(":")[0].strip()


def _of_variable() -> set[str]:
    return {word.replace("%2C", ",") for word in _names(os.environ.get(VARIABLE, "").split(","))}


def _of_file(path: Path) -> set[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        raise EnvError(f"{path}: the list of trusted modules cannot be read ({error})") from error
    return _names(line.partition("#")[0] for line in lines)


def _names(words: Iterable[str]) -> set[str]:
    return {word.strip() for word in words if word.strip()}


# ---- import by name ----------------------------------------------------------------------------------


def module_of_env(env_name: str, module: str | None = None) -> ModuleType:
    """Import the module of an environment's name.

    Args:
        env_name: ``module:Id-v0`` or ``pettingzoo:MODULE``.
        module: this package's module that registers the environments instead, or None for the named module.

    Raises:
        EnvError: the module is not trusted.
        ImportError: it cannot be imported.
    """
    check_trusted({"env_name": env_name})
    return import_module(module or _module_of(env_name))


def typed_object(place: str) -> Any:
    """Import the object of ``module:attribute`` or ``path/to/file.py:attribute``.

    The name must come from the user or an entry point, or must have been accepted by :func:`check_trusted`.

    Raises:
        ImportError, AttributeError, ValueError, OSError: no object of this name exists.
    """
    module, _, attribute = place.rpartition(":")
    found: Any = _module_of_file(Path(module)) if module.endswith(".py") else import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ImportError(f"{path}: no such file")
    # The module needs a unique name, because an installed package may have the same name as the file.
    spec = spec_from_file_location(f"imitate.robots.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
