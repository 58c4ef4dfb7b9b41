"""SHA-1 and SHA-256 without OpenSSL, which ``hashlib`` loads: the fork of each attempt would copy its mappings.

Runs on Python 3.6."""

from functools import lru_cache
from importlib import import_module
from typing import Any, Callable

_MODULES = {"sha1": ("_sha1", "hashlib"), "sha256": ("_sha2", "_sha256", "hashlib")}  # _sha2: since Python 3.12


def sha1_hex(data: bytes) -> str:
    """Return the SHA-1 as hexadecimal digits."""
    return str(_constructor("sha1")(data).hexdigest())


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 as hexadecimal digits."""
    return str(_constructor("sha256")(data).hexdigest())


@lru_cache(maxsize=None)
def _constructor(name: str) -> Callable[[bytes], Any]:
    """Return the first that this Python was built with."""
    for module in _MODULES[name]:
        try:
            found: Callable[[bytes], Any] = getattr(import_module(module), name)
        except ImportError:
            continue
        return found
    raise ImportError(name)
