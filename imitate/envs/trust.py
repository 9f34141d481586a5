"""Modules that may be imported because a file names them.

The ``env_name`` of a demonstration file or a checkpoint may be ``module:Id-v0``, and importing a module runs its code.
So that no file chooses what runs, it is imported only where it is imported already, comes with an extra of this
package, or the user named it: on the command line, in the configuration of a training, in the environment variable
``IMITATE_TRUST_MODULES`` (names with commas between), or in a file of their own (one name per line). A trusted module's
submodules are trusted too.

A robot, ``robot:NAME``, is trusted by its whole name alone: no file moves one. The modules of a reward and of a device
(``take_over``) among its arguments have to be trusted too.

Trust given to a process is written into its environment variable, which the processes that it starts inherit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from imitate.errors import EnvError

VARIABLE = "IMITATE_TRUST_MODULES"
ROBOT, SIMULATED = "robot:", "robot:sim"
"""Beginnings of the names of robots, and of those that are simulated."""
PETTINGZOO = "pettingzoo:"
"""Beginning of the names of environments with several agents: the module follows it."""
EXTRAS = {
    "gym_aloha": "aloha",
    "gymnasium_robotics": "robotics",
    "metaworld": "metaworld",
    "pettingzoo": "pettingzoo",
}
"""Modules of environments that come with an extra of ours."""


def trust(*names: str) -> None:
    """Trust modules, or those of environments ``module:Id-v0``, in this process and in those that it starts."""
    modules = {_module_of(name) if ":" in name else name.strip() for name in names}
    known = _of_variable()
    os.environ[VARIABLE] = ",".join(sorted(known | {module for module in modules if module}))


def trust_env(env: str | Mapping[str, Any] | None) -> None:
    """Trust the module of an environment that the user named: an id, or env_args; None: nothing was named."""
    name = env.get("env_name") if isinstance(env, Mapping) else env
    if isinstance(name, str) and name.startswith(f"{SIMULATED}:"):
        name = name.removeprefix(f"{SIMULATED}:")
    if isinstance(name, str) and _module_of(name):
        trust(name)
    if isinstance(env, Mapping):
        for module in _modules_of_arguments(env):
            trust(module)


def check_trusted(env_meta: Mapping[str, Any]) -> None:
    """Raise EnvError where env_args name a module that is not trusted; pass trust on to processes started later."""
    name = str(env_meta.get("env_name") or "")
    _check(name, _module_of(name))
    for module in _modules_of_arguments(env_meta):
        _check(name, module)


def _check(name: str, module: str) -> None:
    if not module or module in _of_variable():
        return
    if module.startswith(ROBOT):
        if module in _of_file(trust_file()) or module.startswith(SIMULATED):
            return
        raise EnvError(
            f"{name}: a file names this robot, and making it would move it; if you want that, name it yourself "
            f"(--env {name}), add --trust {module}, or add a line '{module}' to {trust_file()}"
        )
    if module in sys.modules:
        trust(module)
        return
    known = _of_variable() | _of_file(trust_file())
    if any(module == one or module.startswith(f"{one}.") for one in known) or _is_ours(module):
        return
    raise EnvError(
        f"{name}: a file names the module '{module}', and importing it would run its code; if you trust it, add "
        f"--trust {module}, set {VARIABLE}={module}, or add a line '{module}' to {trust_file()}"
    )


def trust_file() -> Path:
    """Return the path of the user's list of trusted modules, one per line; it need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base else Path.home() / ".config"
    return folder / "imitate" / "trusted_modules.txt"


def _module_of(env_name: str) -> str:
    """The module that a name stands for; a robot's whole name."""
    if env_name.startswith(PETTINGZOO):
        return env_name.removeprefix(PETTINGZOO).partition(":")[0].strip()
    return env_name.strip() if env_name.startswith(ROBOT) else env_name.rpartition(":")[0].strip()


def _modules_of_arguments(env_meta: Mapping[str, Any]) -> list[str]:
    """Modules that the arguments of a robot name."""
    if not str(env_meta.get("env_name") or "").startswith(ROBOT):
        return []
    kwargs = env_meta.get("env_kwargs") or {}
    named = [str(kwargs.get(key) or "").rpartition(":")[0] for key in ("take_over", "reward")]
    return [module for module in named if module and module != "expert"]


def _of_variable() -> set[str]:
    return _names(os.environ.get(VARIABLE, "").split(","))


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


def _is_ours(module: str) -> bool:
    """Return true for a module of this package or of an extra of it, but not for a file in the working folder."""
    top = module.partition(".")[0]
    if top == __name__.partition(".")[0]:
        return True
    if top not in EXTRAS:
        return False
    spec = find_spec(top)
    if spec is None:
        return True  # the import says which extra is missing
    here = Path.cwd()
    return spec.origin is not None and here not in list(Path(spec.origin).parents)[:2]
