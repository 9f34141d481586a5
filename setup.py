"""Build step beside pyproject.toml: ``configs`` and the catalogue of datasets travel inside the package."""

from pathlib import Path
from shutil import copy, copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies them below ``imitate`` of the built package; a clone keeps the one copy."""

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "imitate" / "configs"
            copytree("configs", target, dirs_exist_ok=True, ignore=ignore_patterns(".*"))
            copy("datasets/catalogue.json", Path(self.build_lib) / "imitate")


setup(cmdclass={"build_py": BuildWithConfigs})
