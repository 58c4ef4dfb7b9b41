"""What ``signal`` calls, without its enums: a call costs a forked attempt twenty copied pages less."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

_module = import_module("_signal")

set_mask: Callable[[int, Iterable[int]], object] = _module.pthread_sigmask
handler_of: Callable[[int], object] = _module.getsignal
