"""The interpreter that ``Flow(python=...)`` names, examined before a run; a hash of an interpreter and its packages.

The process that imports the flow is the first, so the name is read from the source and the interpreter is chosen before
the import. Each needs redrive of the same version, because the executor talks to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable

from .... import __version__
from ...errors import FlowError
from ...flow.source import declared_python, split_target
from ...statefile.paths import names_in

OLDEST = (3, 11)
_INSTALLED = (".dist-info", ".egg-info")
PROBE_SECONDS = 60.0

_PROBE = """\
import json, sys
try:
    import redrive, redrive.engine.runner.zygote.zygote
    version, error = redrive.__version__, ""
except Exception as problem:
    version, error = None, "{}: {}".format(type(problem).__name__, problem)
print(json.dumps([list(sys.version_info[:2]), version, error]))
"""


def interpreter_of(target: str) -> str | None:
    """Return the path of the interpreter for a flow file; None: the one of this process. Raises FlowError."""
    python = declared_python(target)
    return None if python is None else find_interpreter(python, target)


def find_interpreter(python: str, target: str) -> str:
    """Return the path of the interpreter that a flow file names. Raises FlowError if it cannot run attempts."""
    path = _find(python, os.path.dirname(os.path.abspath(split_target(target)[0])))
    _examine(python, path)
    return path


def _find(python: str, folder: str) -> str:
    """Find a program by its name in PATH, or by a path, which is relative to the folder of the flow file."""
    if os.sep in python:
        return os.path.join(folder, os.path.expanduser(python))
    from shutil import which  # here: most flows name no interpreter

    found = which(python)
    if found is None:
        raise FlowError(f"python={python!r}: there is no such program in PATH")
    return found


def _examine(python: str, path: str) -> None:
    called = f"python={python!r}"
    try:
        probe = subprocess.run(
            [path, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
            cwd=os.sep,  # nothing beside the caller may shadow redrive
        )
        version, redrive, error = json.loads(probe.stdout.splitlines()[-1])
    except OSError as problem:
        raise FlowError(f"{called}: {path} cannot be started: {problem.strerror}") from None
    except (subprocess.SubprocessError, ValueError, IndexError):
        raise FlowError(f"{called}: {path} is no Python interpreter that works") from None
    if tuple(version) < OLDEST:
        raise FlowError(f"{called} is Python {version[0]}.{version[1]}; redrive needs 3.11 or later there")
    if redrive is None:
        raise FlowError(
            f"{called} cannot import redrive ({error}): install it there, {path} -m pip install redrive=={__version__}"
        )
    if redrive != __version__:
        raise FlowError(f"{called} has redrive {redrive}, and this is {__version__}: install the same version there")


def environment_hash(folders: Iterable[str] | None = None) -> str:
    """Return a hash of this interpreter and its installed packages, by name and version, not by content: 12 hex digits.

    Two hosts with the same packages have the same hash; an upgrade between two attempts changes it. ``folders``: where
    packages are installed; ``sys.path`` by default.
    """
    packages = {name for folder in (sys.path if folders is None else folders) for name in _packages(folder)}
    facts = [sys.version, platform.machine(), *sorted(packages)]
    return hashlib.sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()[:12]


def _packages(folder: str) -> list[str]:
    """Return the metadata folders of installed packages: ``requests-2.31.0.dist-info``."""
    # A path may also be an archive, or a folder that does not exist.
    return [name for name in names_in(folder) if name.endswith(_INSTALLED)] if folder else []
