"""Starts that operators ask for: a file each, beside the supervisor's file, until the run has started.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

No process has to live for a start: who asks writes the file whole and may go; a supervisor claims it by renaming it,
starts the run under the name that the request gives, and removes it. One that is killed in between leaves a claimed
file, and the next supervisor starts a run of the same name, which exists once. A request that nobody claims for a
minute needs a human; after an hour no supervisor takes it any more. Instants are microseconds UTC.
"""

import contextlib
import json
import os
import stat
import time
from typing import Dict, List, Mapping, NamedTuple, Optional

from ..errors import StateFileError
from .paths import default_folder, names_in

UNCLAIMED_US = 60 * 1000000  # from then on a request needs a human
STALE_US = 3600 * 1000000  # from then on only a person starts it
BYTES_MAX = 1024 * 1024
_ASKED, _CLAIMED, _NEW = ".start", ".claimed", ".new"


class StartRequest(NamedTuple):
    """A start that was asked for.

    Attributes:
        name: of the request; the run has it, unless it is that of a logical time.
        flow: its name; ``state_path``: of its runs.
        logical: the logical time that the run stands for; None: none, it claims no time of the schedule.
        params: values by name.
        who: user@host; ``asked_at``: when.
    """

    name: str
    flow: str
    state_path: str
    logical: Optional[int]
    params: Mapping[str, str]
    who: str
    asked_at: int

    def is_stale(self, now_us: int) -> bool:
        """Whether only a person starts it."""
        return now_us - self.asked_at > STALE_US

    def needs_human(self, now_us: int) -> bool:
        """Whether nobody has taken it for a minute."""
        return now_us - self.asked_at > UNCLAIMED_US


def requests_folder() -> str:
    """The folder of the files, in the default folder for state files."""
    return os.path.join(default_folder(), "starts")


def write_request(
    flow: str, state_path: str, logical: Optional[int], params: Mapping[str, str], who: str, now_us: int
) -> StartRequest:
    """Ask for a start. Once this returns the request outlives its process. Raises StateFileError."""
    moment = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_us // 1000000))
    request = StartRequest(f"{moment}-{os.urandom(3).hex()}", flow, state_path, logical, dict(params), who, now_us)
    folder = requests_folder()
    path = os.path.join(folder, request.name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(path + _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(request._asdict(), file)
            file.flush()
            os.fsync(descriptor)
        os.rename(path + _NEW, path + _ASKED)
    except OSError as error:
        raise StateFileError(f"a start cannot be asked for in {folder}: {error.strerror}") from None
    return request


def read_requests() -> List[StartRequest]:
    """All requests, claimed or not, the oldest first. What another user may have written is none."""
    folder = requests_folder()
    found: Dict[str, StartRequest] = {}
    for name in names_in(folder):
        stem, suffix = os.path.splitext(name)
        if suffix in (_ASKED, _CLAIMED):
            request = _read(os.path.join(folder, name), stem)
            if request is not None:
                found[stem] = request
    return sorted(found.values(), key=lambda one: (one.asked_at, one.name))


def _read(path: str, name: str) -> Optional[StartRequest]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
            value = json.loads(file.read(BYTES_MAX).decode("utf-8")) if is_own else None
        return _request_of(value, name)
    except (OSError, ValueError):  # claimed meanwhile; no JSON
        return None


def _request_of(value: object, name: str) -> Optional[StartRequest]:
    """The request of a JSON value; None if no redrive wrote it."""
    if not isinstance(value, dict) or set(value) != set(StartRequest._fields):
        return None
    request = StartRequest(**value)
    texts = [request.name, request.flow, request.state_path, request.who]
    is_sound = request.name == name and all(isinstance(one, str) for one in texts) and isinstance(request.params, dict)
    instants = [request.asked_at, request.asked_at if request.logical is None else request.logical]
    return request if is_sound and all(type(one) is int for one in instants) else None


def claim(request: StartRequest) -> bool:
    """Take a request, also one that an earlier supervisor left claimed. False: it is gone."""
    path = os.path.join(requests_folder(), request.name)
    with contextlib.suppress(OSError):
        os.rename(path + _ASKED, path + _CLAIMED)
    return os.path.exists(path + _CLAIMED)


def remove(request: StartRequest) -> None:
    """Remove a request whose run has started, or cannot start."""
    for suffix in (_ASKED, _CLAIMED):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(requests_folder(), request.name + suffix))
