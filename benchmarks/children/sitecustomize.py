"""Start-up code of the Python processes that tests start: it loads a mutant instead of its module, or records lines.

This folder is the first in their PYTHONPATH; see ``benchmarks.mutation_child.in_children``.
"""

import importlib.abc
import importlib.machinery
import marshal
import os
import sys


class MutatedLoader(importlib.machinery.SourceFileLoader):
    """Loader of a module whose code was compiled elsewhere."""

    code = None

    def get_code(self, fullname):  # noqa: ANN001, ANN201
        """Return the mutated code instead of the file's."""
        return self.code


class MutatedFinder(importlib.abc.MetaPathFinder):
    """Finder that loads the mutated module instead of the original."""

    def __init__(self, module, code) -> None:  # noqa: ANN001
        self._module, self._code = module, code

    def find_spec(self, fullname, path, target=None):  # noqa: ANN001, ANN201
        """Return the spec of the file, with the loader of the mutant."""
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
