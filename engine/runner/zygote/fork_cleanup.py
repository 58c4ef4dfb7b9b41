"""Spares attempts what ``threading``, ``logging`` and ``random`` do after a fork: 80 of 230 copied pages.

The first two forget the other threads and renew the locks that these may have held. The zygote has one thread. So in
its children they would set what is set already; but forks of the children need it. ``random`` gets a new seed, here by
the shortest way.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Protocol

TRIED_VERSIONS = frozenset([(3, 11), (3, 12), (3, 13)])  # of Python: the names below are private there


class _Lock(Protocol):
    def _at_fork_reinit(self) -> None: ...


def omit_fork_cleanup() -> None:
    """Omit it in the children of this process; that of threads if ``threading`` knows the main thread alone."""
    if sys.version_info[:2] not in TRIED_VERSIONS:
        return
    threading, logging, random = (sys.modules.get(name) for name in ("threading", "logging", "random"))
    if random is not None and _is_original(random):
        vars(random)["_seed_instance"] = super(random.Random, random._inst).seed
        _replace(random, random.Random.seed, _Random.seed.__code__)
    if threading is None or not _is_alone(threading):
        return
    _replace(threading, threading._after_fork, _restore_threading.__code__)
    if logging is not None and _are_plain(logging):
        _replace(logging, logging._after_at_fork_child_reinit_locks, _restore_logging.__code__)


def _is_alone(threading: ModuleType) -> bool:
    main = threading.main_thread()
    is_alone = threading._active == {_thread.get_ident(): main} and not threading._limbo and not _thread._count()
    return is_alone and {*threading._dangling} <= {main}


def _is_original(random: ModuleType) -> bool:
    seed = random.Random.seed
    return type(random._inst) is random.Random and (seed.__module__, seed.__qualname__) == ("random", "Random.seed")


def _are_plain(logging: ModuleType) -> bool:
    handlers = logging._at_fork_reinit_lock_weakset
    return all(type(handler)._at_fork_reinit is logging.Handler._at_fork_reinit for handler in handlers)


def _replace(module: ModuleType, hook: FunctionType, code: CodeType) -> None:
    """Have a hook run the code of another function. The interpreter knows the function object of the hook."""
    vars(module)["_code_after_fork"] = hook.__code__
    hook.__code__ = code


# ruff: noqa: F821  # the type checker knows these names
# They run with the names of the module of their hook, at the first fork of each child of this process. These are:

_code_after_fork: CodeType  # of the hook itself
_after_fork: FunctionType  # of threading
_lock: _Lock  # of logging
_after_at_fork_child_reinit_locks: FunctionType
_inst: object  # of random
_seed_instance: Callable[[], None]


def _restore_threading() -> None:
    _after_fork.__code__ = _code_after_fork


def _restore_logging() -> None:
    _lock._at_fork_reinit()  # it was acquired before the fork
    _after_at_fork_child_reinit_locks.__code__ = _code_after_fork


class _Random:
    """The first call of ``Random.seed`` in a child is that of its hook."""

    def seed(self, a: object = None, version: int = 2) -> None:
        __class__.seed.__code__ = _code_after_fork  # type: ignore[name-defined]  # it is random.Random
        if self is _inst and a is None:
            _seed_instance()
            self.gauss_next = None
        else:
            self.seed(a, version)
