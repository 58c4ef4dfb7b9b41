"""Spares attempts the work of ``threading`` after a fork: 80 copied pages, a quarter of the CPU of a short attempt.

That work forgets the other threads and renews the locks that they may have held. The zygote has one thread. So in its
children the work would set what is set already; but forks of the children need it.
"""

from __future__ import annotations

import _thread
import sys


def omit_thread_cleanup() -> None:
    """Omit the work in the children of this process, if ``threading`` is loaded and knows the main thread alone."""
    threading = sys.modules.get("threading")
    if threading is None or _thread._count():
        return
    main = threading.main_thread()
    is_alone = threading._active == {_thread.get_ident(): main} and not threading._limbo
    if is_alone and {*threading._dangling} <= {main}:
        hook = threading._after_fork  # registered with the interpreter, which calls this function object
        vars(threading)["_code_after_fork"] = hook.__code__
        hook.__code__ = _restore_hook.__code__


def _restore_hook() -> None:
    """Run in the place of the hook, with the names of ``threading``, at the first fork of each child."""
    _after_fork.__code__ = _code_after_fork  # type: ignore[name-defined]  # noqa: F821
