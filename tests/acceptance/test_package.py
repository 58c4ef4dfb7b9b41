"""What a wheel and a source distribution hold: every file of the package, and no test."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.checkout import FOLDERS, ROOT

_BUILD = "import sys; sys.path[:0] = sys.argv[2:]; import backend; backend.build_{}(sys.argv[1])"


def build(what: str, source: Path, target: Path) -> Path:
    """Build in a folder as pip does: the packages that the build wants are in ``sys.path`` of the backend alone."""
    paths = [".build", sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    command = [getattr(sys, "_base_executable", sys.executable), "-P", "-c", _BUILD.format(what), str(target), *paths]
    target.mkdir()
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=100)
    (built,) = target.iterdir()
    return built


@pytest.mark.long
def test_a_source_distribution_has_no_tests_and_makes_a_wheel_with_every_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in (*FOLDERS, ".package", ".build"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_readme.py", source / "tests")  # setuptools adds tests by such names
    with tarfile.open(build("sdist", source, tmp_path / "sdist")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(tmp_path)
    (unpacked,) = tmp_path.glob("redrive-*")
    assert not (unpacked / "tests").exists() and not (unpacked / "build").exists()

    with zipfile.ZipFile(build("wheel", unpacked, tmp_path / "wheel")) as wheel:
        held = {name for name in wheel.namelist() if name.startswith("redrive/")}
    files = {path for folder in FOLDERS for path in (source / folder).rglob("*") if path.is_file()}
    wanted = {f"redrive/{path.relative_to(source)}" for path in files if path.name != "README.md"}
    assert wanted | {"redrive/__main__.py", "redrive/py.typed"} <= held
