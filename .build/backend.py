"""Builds the package with setuptools: a wheel has the page for ``man``, and a source distribution no tests.

The page comes from the declarations of the commands, which a build imports; so it wants what they import.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (the hooks that stay as they are)
from setuptools.command.sdist import sdist

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "build" / "man" / "redrive.1"  # named in [tool.setuptools.data-files]


def get_requires_for_build_wheel(config_settings=None):
    dependencies = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *dependencies]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with _importable() as folder:
        command = [sys.executable, "-P", "-m", "redrive", "help", "--man"]
        paths = os.pathsep.join([folder, *filter(None, sys.path)])  # an isolated build has its packages in sys.path
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    _PAGE.parent.mkdir(parents=True, exist_ok=True)
    if done.returncode == 0:
        _PAGE.write_bytes(done.stdout)
    else:  # a build without isolation may lack what the commands import
        _PAGE.unlink(missing_ok=True)
        print("redrive: this wheel has no page for man; install its dependencies first", file=sys.stderr)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


@contextlib.contextmanager
def _importable() -> Iterator[str]:
    """A folder from which this checkout is imported as ``redrive``."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "redrive")
        package.mkdir()
        for path in (*(_ROOT / ".package").glob("*.py"), *(_ROOT / name for name in ("console", "engine", "themes"))):
            (package / path.name).symlink_to(path)
        yield folder


class SourceDistribution(sdist):
    """Without the four tests that setuptools adds by their names: tests need the checkout."""

    def make_distribution(self) -> None:
        for folder in ("tests", "build"):
            self.filelist.exclude_pattern(None, prefix=folder)
        self.filelist.append(os.path.relpath(__file__, _ROOT))
        super().make_distribution()
