"""Inspects the header of a file before SQLite opens it: a state file, another database, cut short, or no database.

SQLite repairs, locks and creates files beside the one that it opens. A file that is not a state file must not change,
so its first hundred bytes are checked here (https://sqlite.org/fileformat2.html, section 1.3).

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import stat
import struct
from typing import NamedTuple, Optional, Tuple

from ..errors import CorruptFileError, ForeignFileError, NewerFileError, StateFileError, StorageError

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100
APPLICATION_ID = 0x52445256  # "RDRV"
SCHEMA_VERSION = 1


class Header(NamedTuple):
    """The fields of SQLite's header that decide."""

    page_bytes: int
    pages: int  # 0 if the writer was too old to fill it in
    version: int  # PRAGMA user_version: the format of the state file
    application_id: int


def inspect(path: str) -> Optional[Header]:
    """Return the header of a state file, None for an empty file. Opens nothing for writing.

    Raises FileNotFoundError, or the StateFileError that says why this file cannot be used.
    """
    data, size = _read_start(path)
    if size == 0:
        if has_content(path + "-wal"):
            raise CorruptFileError(f"{path} is empty but its -wal is not: the file was cut short; restore a copy")
        return None
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data):
            raise CorruptFileError(f"{path} is cut short: {size} bytes are left; restore a copy")
        raise ForeignFileError(f"{path} is not a redrive state file (and no SQLite database); name another one")
    if len(data) < HEADER_BYTES:
        raise CorruptFileError(f"{path} is cut short: {size} bytes are left; restore a copy")
    header = _parse(data)
    _validate(path, header, size)
    return header


def _read_start(path: str) -> Tuple[bytes, int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read the state file {path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise StateFileError(f"{path} is a directory; name a file in it, such as {os.path.join(path, 'state.db')}")
        if not stat.S_ISREG(status.st_mode):
            raise StateFileError(f"{path} is not a regular file; name another one")
        return os.read(descriptor, HEADER_BYTES), status.st_size
    except OSError as error:
        raise StorageError(f"cannot read the state file {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _parse(data: bytes) -> Header:
    (page_bytes,) = struct.unpack_from(">H", data, 16)
    changes, pages = struct.unpack_from(">II", data, 24)
    version, application_id, valid_for = struct.unpack_from(">8xI4xI20xI", data, 52)
    return Header(
        65536 if page_bytes == 1 else page_bytes, pages if changes == valid_for else 0, version, application_id
    )


def _validate(path: str, header: Header, size: int) -> None:
    if header.application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
    check_version(path, header.version)
    if header.page_bytes < 512 or header.page_bytes & (header.page_bytes - 1):
        raise CorruptFileError(
            f"{path} is damaged: its header gives a page size of {header.page_bytes}; restore a copy"
        )
    # A checkpoint that was interrupted leaves a short file on purpose: the rest is still in the -wal.
    unfinished = has_content(path + "-wal") or has_content(path + "-journal")
    expected = header.pages * header.page_bytes
    if size < expected and not unfinished:
        raise CorruptFileError(f"{path} is cut short: {size} of {expected} bytes are left; restore a copy")


def check_version(path: str, version: int) -> None:
    """Raises NewerFileError for a format later than SCHEMA_VERSION."""
    if version > SCHEMA_VERSION:
        raise NewerFileError(
            f"{path} was written by a later version of redrive (format {version}, this one knows {SCHEMA_VERSION}); "
            f"upgrade redrive"
        )


def has_content(path: str) -> bool:
    """True for a file that exists and is not empty."""
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False
