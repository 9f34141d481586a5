"""Start of the Python processes that tests start: with a mutant in the place of its module, or recording lines.

This folder stands first in their PYTHONPATH: see ``benchmarks.mutation_child.in_children``.
"""

import importlib.abc
import importlib.machinery
import marshal
import os
import sys


class MutatedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module whose code was compiled elsewhere."""

    code = None

    def get_code(self, fullname):  # noqa: ANN001, ANN201
        """Return that code instead of the file's."""
        return self.code


class MutatedFinder(importlib.abc.MetaPathFinder):
    """Puts the mutated module in the place of the true one."""

    def __init__(self, module, code) -> None:  # noqa: ANN001
        self._module, self._code = module, code

    def find_spec(self, fullname, path, target=None):  # noqa: ANN001, ANN201
        """Return the place of the file, with another loader."""
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        spec.loader = MutatedLoader(fullname, spec.origin)
        spec.loader.code = self._code
        return spec


def _begin() -> None:
    if "IMITATE_MUTANT" in os.environ:
        with open(os.environ["IMITATE_MUTANT"], "rb") as file:
            sys.meta_path.insert(0, MutatedFinder(*marshal.load(file)))
    if "IMITATE_RECORD" in os.environ:
        from benchmarks.line_recorder import line_recorder, record_children

        package, out = os.environ["IMITATE_RECORD"].split(os.pathsep)
        record_children(line_recorder(package), out, also_this=True)


if __name__ == "sitecustomize":
    _begin()
