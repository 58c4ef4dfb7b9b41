"""Has an attempt allocate its objects side by side: a forked process copies each page that it writes into."""

from __future__ import annotations

POOLED_BYTES_MAX = 512  # of an object; larger ones come from the C library
ALIGNMENT_BYTES = 16
RUN_BYTES = 8192  # free places side by side, half of a pool


def fill_pools() -> list[object]:
    """Fill the free places between the objects of the import; return what fills them, to be kept.

    Python keeps small objects in pools, one of each size in use. An attempt copies eight pages less, and the zygote
    writes into twelve pages less for each.
    """
    fillers: list[object] = []
    for size in range(ALIGNMENT_BYTES, POOLED_BYTES_MAX + 1, ALIGNMENT_BYTES):
        neighbours, address = 0, 0
        while neighbours * size < RUN_BYTES:
            filler = _object_of(size)
            fillers.append(filler)
            neighbours = neighbours + 1 if id(filler) == address + size else 1
            address = id(filler)
        del filler, fillers[-neighbours:]
    return fillers


def _object_of(size: int) -> object:
    """Return a new object of so many bytes that the collector does not know."""
    if size == ALIGNMENT_BYTES:
        return object()
    return float(size) if size == 2 * ALIGNMENT_BYTES else bytes(size - bytes.__sizeof__(b""))
