"""Builds the package with setuptools: a source distribution has no tests."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403 (the hooks as they are)
from setuptools.command.sdist import sdist

_ROOT = Path(__file__).resolve().parent.parent


class SourceDistribution(sdist):
    """Without the four tests that setuptools adds by their names: tests need the checkout."""

    def make_distribution(self) -> None:
        for folder in ("tests", "build"):
            self.filelist.exclude_pattern(None, prefix=folder)
        self.filelist.append(os.path.relpath(__file__, _ROOT))
        super().make_distribution()
