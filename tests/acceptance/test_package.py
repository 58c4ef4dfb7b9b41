"""What a wheel and a source distribution hold: every file of the package, the page for ``man``, and no test."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from redrive.console import manual
from redrive.console.cli.group import SECTIONS
from redrive.console.cli.help import man_page
from support.checkout import FOLDERS, ROOT
from support.marks import needs

_BUILD = "import sys; sys.path[:0] = sys.argv[2:]; import backend; backend.build_{}(sys.argv[1])"
_PAGE = "redrive-0.1.0.data/data/share/man/man1/redrive.1"


def build(what: str, source: Path, target: Path) -> Path:
    """Build in a folder as pip does: the packages that the build wants are in ``sys.path`` of the backend alone."""
    paths = [".build", sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    command = [getattr(sys, "_base_executable", sys.executable), "-P", "-c", _BUILD.format(what), str(target), *paths]
    target.mkdir()
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=100)
    (built,) = target.iterdir()
    return built


@pytest.mark.long
def test_a_source_distribution_has_no_tests_and_makes_a_wheel_with_every_file_and_the_page(tmp_path: Path) -> None:
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
        page = wheel.read(_PAGE).decode("ascii")
    files = {path for folder in FOLDERS for path in (source / folder).rglob("*") if path.is_file()}
    wanted = {f"redrive/{path.relative_to(source)}" for path in files if path.name != "README.md"}
    assert wanted | {"redrive/__main__.py", "redrive/py.typed"} <= held
    assert page == man_page()


def test_the_page_has_every_command_with_its_options_and_every_topic() -> None:
    page = man_page()
    for command in (one.name for section in SECTIONS.values() for one in section):
        assert rf"\fBredrive {command}\fR" in page
    assert r"\fB\-\-fingerprint FP\fR" in page and page.count(r"\fBredrive schedule ") > 3
    sections = set(re.findall(r'^\.SH "(.*)"$', page, re.MULTILINE))
    left_out = {topic.upper() for topic in manual.TOPICS} - {name.replace("\\-", "-") for name in sections}
    assert left_out == {"CHANGES", "COMMANDS", "EXIT-CODES"}


@pytest.mark.long
@needs("groff")
def test_the_page_is_set_without_a_warning_and_shows_the_text_of_the_manual() -> None:
    command = ["groff", "-ww", "-man", "-Tutf8", "-P-c", "-rLL=80n"]
    done = subprocess.run(command, input=man_page(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    lines = re.sub("_\b|(.)\b", "", done.stdout).splitlines()
    code = [line for topic in manual.TOPICS if topic not in ("commands", "exit-codes") for line in _code_of(topic)]
    shown = {line.strip() for line in lines}
    assert len(code) > 50 and [line for line in code if line not in shown] == []
    assert [line for line in lines if len(line) > 80] == []


def _code_of(topic: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", manual.load_topic(topic).text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]
