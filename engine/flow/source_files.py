"""The source files of a flow: its own file, and the modules that it imported from beside it.

"Beside it" is the folder of the flow file (for a file in a package: the folder that holds the outermost package) and
the folders below. Installed packages do not count. A module that a task imports while it runs does not count either:
each attempt reads it from the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..domain.digests import sha256_hex

FILES_MAX = 500
DIGEST_CHARACTERS = 16

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_INTERPRETER = tuple({Path(sys.prefix), Path(sys.base_prefix)})
_PACKAGE = Path(__file__).parents[1]


def digest_of(content: bytes) -> str:
    """Return the digest by which two versions of a file are compared."""
    return sha256_hex(content)[:DIGEST_CHARACTERS]


def source_files(flow_file: Path, modules: Iterable[object]) -> dict[str, str]:
    """Return the digest of each source file by its path; ``modules``: the imported ones, as of ``sys.modules``."""
    root = source_root(flow_file)
    paths = dict.fromkeys([flow_file, *sorted(_files_below(root, modules))[: FILES_MAX - 1]])
    return {str(path): digest for path in paths if (digest := digest_of_file(path)) is not None}


def digest_of_file(path: str | Path) -> str | None:
    """Return the digest of a file; None if it cannot be read."""
    try:
        return digest_of(Path(path).read_bytes())
    except OSError:
        return None


def source_root(flow_file: Path) -> Path:
    """Return the folder from which the flow imports its own modules."""
    root = flow_file.parent
    while (root / "__init__.py").exists() and root.parent != root:
        root = root.parent
    return root


def hash_of_sources(flow_file: str, sources: Mapping[str, str]) -> str:
    """Return one hash of all source files; it does not depend on the folder in which they lie."""
    root = source_root(Path(flow_file))
    lines = sorted(f"{Path(path).relative_to(root)} {digest}" for path, digest in sources.items())
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))


def _files_below(root: Path, modules: Iterable[object]) -> Iterator[Path]:
    for module in modules:
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        path = Path(name).resolve()
        if path.is_relative_to(root) and not _is_installed(path, root):
            yield path


def _is_installed(path: Path, root: Path) -> bool:
    """Whether the file belongs to a package, the interpreter or this program, although it lies below the folder."""
    if not _INSTALLED.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(folder) and folder.is_relative_to(root) for folder in (*_INTERPRETER, _PACKAGE))
