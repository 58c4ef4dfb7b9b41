"""Leaves OpenSSL out of the console's process, which opens no TLS connection: 5 MB and 10 ms of its start.

asyncio imports ``ssl``, and hashlib and hmac the digests of OpenSSL, where they are there; each does without.
"""

from __future__ import annotations

import sys
from typing import Any


def leave_out_openssl() -> None:
    """Make later imports of OpenSSL fail, as in a Python that is built without it; one that is loaded stays."""
    modules: dict[str, Any] = sys.modules
    for name in ("_ssl", "_hashlib"):
        modules.setdefault(name, None)
