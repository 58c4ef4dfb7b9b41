"""Stops a test run that would try an old copy of the code: ``pip install .`` makes a copy, ``-e`` makes none.

The first import of the tests: a later one may need a name that the old copy lacks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import redrive

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("console", "engine", "themes")


def find_differences(checkout: Path, installed: Path) -> list[str]:
    """Files of the checkout's packages that the installed package lacks, has besides, or has with another content."""
    pairs = [(checkout / folder, installed / folder, "**/*") for folder in FOLDERS]
    pairs.append((checkout / ".package", installed, "*"))
    return [name for source, copy, pattern in pairs for name in _differing(source, copy, pattern)]


def _differing(source: Path, copy: Path, pattern: str) -> list[str]:
    here, there = _contents(source, pattern), _contents(copy, pattern)
    return sorted(f"{source.name}/{name}" for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def _contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
    }


def stop_unless_current(checkout: Path, installed: Path) -> None:
    """Exit with one sentence if the installed package is a copy that differs from the checkout."""
    if installed == checkout / ".package":
        return
    if differing := find_differences(checkout, installed):
        others = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        sys.exit(
            f"The tests would run the copy in {installed}, which differs from this checkout ({differing[0]}{others}):"
            " pip install -e '.[test]' makes the tests run the checkout itself."
        )


stop_unless_current(ROOT, Path(str(redrive.__file__)).resolve().parent)
