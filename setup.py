"""Build step beside pyproject.toml: the folder ``configs`` travels inside the package."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies ``configs`` to ``imitate/configs`` of the built package; a clone keeps the one copy."""

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "imitate" / "configs"
            copytree("configs", target, dirs_exist_ok=True, ignore=ignore_patterns(".*"))


setup(cmdclass={"build_py": BuildWithConfigs})
