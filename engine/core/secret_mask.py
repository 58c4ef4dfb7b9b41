"""Masks secrets in texts: the values that the flow declares as secrets, and the passwords of URLs.

Every text from an attempt passes a ``SecretMask`` before the executor writes it anywhere. A value is also found in the
forms in which programs print it (``FORMS``), and each of several lines by itself.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import structs

from ..domain.task_options import masked_param
from ..errors import FlowError
from .spec import FlowSpec

SHORTEST = 4  # characters of a secret: masking a shorter one would mask half of every text
SHORTEST_LINE = 8  # characters of one line of a secret of several lines
URL_HELD_BYTES = 512  # of an unfinished URL, at the end of a piece of output

_USER_INFO = r"""[^\s/?#"'<>]"""
_URL = re.compile(rf"(://[^\s/@:?#\"'<>]*:){_USER_INFO}+@")
_URL_START = re.compile(rb"(?::/?|://" + _USER_INFO.encode() + rb"{0,%d})\Z" % URL_HELD_BYTES)

Value = TypeVar("Value")


def secret_values(flow: FlowSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that are set, by name: a parameter of the flow, else a variable of the environment."""
    found = {name: flow.params[name] if name in flow.params else environment.get(name) for name in flow.secrets}
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def require_secrets(flow: FlowSpec, environment: Mapping[str, str]) -> None:
    """Raise FlowError for a secret that is missing, or too short to be masked."""
    values = secret_values(flow, environment)
    for name in flow.secrets:
        value = values.get(name)
        if value is None and name in flow.params:
            raise FlowError(
                f"flow {flow.name!r} needs its secret parameter {name!r}, which no state file holds: give it with "
                f"--param {name}=@FILE or --param {name}=- (standard input)"
            )
        if value is None:
            raise FlowError(f"flow {flow.name!r} needs the variable {name} of the environment, a secret; set it first")
        if len(value) < SHORTEST:
            raise FlowError(f"the secret {name} has under {SHORTEST} characters, too few to mask it in texts")


_WITHOUT_TEXT = frozenset([type(None), bool, int, float])


class SecretMask:
    """Replaces secrets by ``***NAME***``, and passwords of URLs by ``***``."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        names: dict[str, str] = {}
        for name, value in (values or {}).items():
            names.update(dict.fromkeys(_forms(value), name))
        self._names = names
        self._forms = sorted((form.encode("utf-8", "surrogateescape") for form in names), key=len, reverse=True)
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), _URL.pattern]))

    def text(self, text: str) -> str:
        return self._pattern.sub(self._masked, text)

    def _masked(self, match: re.Match[str]) -> str:
        name = self._names.get(match[0])
        return f"***{name}***" if name is not None else f"{match[1]}***@"

    def find(self, text: str) -> str | None:
        """Return which secret a text holds, in words; None if it holds none."""
        match = self._pattern.search(text)
        if match is None or (match[1] and match[0] == f"{match[1]}***@"):
            return None
        name = self._names.get(match[0])
        return "a URL with a password" if name is None else f"the secret {name}"

    def value(self, value: Value) -> Value:
        """Return a value with all its texts masked: of mappings, lists, named tuples and dataclasses.

        A value without a secret is returned as it is.
        """
        masked: Value = self._mask(value)
        return masked

    def _mask(self, value: Any) -> Any:
        if type(value) in _WITHOUT_TEXT:  # most values of an outcome
            return value
        if isinstance(value, str):
            masked = self.text(value)
            return value if masked == value else masked  # a member of an enum stays one
        if isinstance(value, Mapping):
            parts = {self._mask(key): self._mask(part) for key, part in value.items()}
            return value if _are_same(parts.values(), value.values()) and _are_same(parts, value) else parts
        if isinstance(value, list | tuple):
            items = [self._mask(part) for part in value]
            if _are_same(items, value):
                return value
            return value._make(items) if hasattr(value, "_make") else type(value)(items)
        replaced: Callable[..., Any] = replace
        if isinstance(value, msgspec.Struct):
            old, replaced = structs.asdict(value), structs.replace
        elif is_dataclass(value) and not isinstance(value, type):
            old = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        else:
            return value
        new = {name: self._mask(part) for name, part in old.items()}
        return value if _are_same(new.values(), old.values()) else replaced(value, **new)

    def stored_flow(self, flow: FlowSpec) -> FlowSpec:
        """Return the flow as the state file may hold it. Of the senders of pages it holds no options anyway."""
        is_clean = self.find(msgspec.json.encode(flow.tasks).decode()) is None  # fast, for flows of 100,000 tasks
        tasks = flow.tasks if is_clean else tuple(map(self.value, flow.tasks))
        return structs.replace(flow, params=self.stored_params(flow), tasks=tasks)

    def stored_params(self, flow: FlowSpec) -> Mapping[str, object]:
        """Return the parameters of a flow as the state file may hold them."""
        params = {name: masked_param(name) if name in flow.secrets else part for name, part in flow.params.items()}
        masked: Mapping[str, object] = self.value(params)
        return masked

    # --- Streams ------------------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> bytes:
        """Return bytes with their secrets masked; bytes that are not UTF-8 stay as they are."""
        text = data.decode("utf-8", "surrogateescape")
        masked = self.text(text)
        return data if masked == text else masked.encode("utf-8", "surrogateescape")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the masked beginning of a stream, and the end of it that may be the beginning of a secret."""
        if not self._forms and b":" not in data:  # nothing that could be a secret
            return data, b""
        held = self._unfinished(data, 0)
        end = 0
        for match in self._matches(data):
            if match[0] >= held:
                break
            end = match[1]
        held = self._unfinished(data, end)
        return self.data(data[:held]), data[held:]

    def _matches(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the secrets begin and end in the bytes."""
        text = data.decode("utf-8", "surrogateescape")
        for match in self._pattern.finditer(text):
            start = len(text[: match.start()].encode("utf-8", "surrogateescape"))
            yield start, start + len(match[0].encode("utf-8", "surrogateescape"))

    def _unfinished(self, data: bytes, start: int) -> int:
        """Return where the longest end of ``data[start:]`` begins that may be the beginning of a secret."""
        url = _URL_START.search(data, start)
        found = len(data) if url is None else url.start()
        for form in self._forms:
            longest = min(len(form) - 1, len(data) - start)
            size = next((size for size in range(longest, 0, -1) if data.endswith(form[:size])), 0)
            found = min(found, len(data) - size)
        return found


class MaskedStream:
    """Masks a stream that arrives in pieces: a secret may be split over two of them."""

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Add a piece, and return what is certain by now."""
        masked, self._held = self._mask.split(self._held + data)
        return masked

    def flush(self) -> bytes:
        """Return the rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._mask.data(rest)


def _are_same(parts: Iterable[object], others: Iterable[object]) -> bool:
    return all(part is other for part, other in zip(parts, others, strict=True))


def _forms(value: str) -> Iterator[str]:
    """Yield the forms in which programs print a value."""
    lines = [line.strip() for line in value.splitlines()] if len(value.splitlines()) > 1 else []
    for text in (value, value.strip(), *(line for line in lines if len(line) >= SHORTEST_LINE)):
        if len(text) >= SHORTEST:
            yield text
            for form in FORMS:
                yield from form(text)


def _quoted_in_urls(text: str) -> Iterator[str]:
    """Quote a text once, and once more for a URL that is a parameter of another one."""
    for quoted in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield from (quoted, quote(quoted, safe=""))
        yield _PERCENT.sub(lambda match: match[0].lower(), quoted)


def _escaped_in_html(text: str) -> Iterator[str]:
    import html  # here: most flows name no secret

    yield from (html.escape(text), html.escape(text, quote=False), html.escape(text).replace("&#x27;", "&#39;"))


def _escaped_in_json(text: str) -> Iterator[str]:
    """Escape a text once, and once more for a JSON text that is itself a text in JSON."""
    for is_ascii in (True, False):
        once = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        yield from (once, json.dumps(once, ensure_ascii=is_ascii)[1:-1])


def _quoted_in_shells(text: str) -> Iterator[str]:
    """``'...'`` without its quotes, which are not secret, and with backslashes."""
    yield from (shlex.quote(text).removeprefix("'").removesuffix("'"), _SHELL_UNSAFE.sub(r"\\\g<0>", text))


def _shown_by_python(text: str) -> Iterator[str]:
    """Alone, and within a text or JSON that has quotes of both kinds, of which ``repr`` escapes one."""
    data = text.encode("utf-8", "surrogateescape")
    yield from (repr(text)[1:-1], ascii(text)[1:-1], repr(data)[2:-1])
    for inner in (text, *_escaped_in_json(text)):
        beside = "\"'"
        yield from (repr(beside + inner)[4:-1], ascii(beside + inner)[4:-1])
    yield repr(b"\"'" + data)[5:-1]


def _in_base64(text: str) -> Iterator[str]:
    """Alone and within a longer text, as ``user:secret``, at each of the three places in a group of four letters.

    The first and the last letter beside a form hold bits of the neighbours as well, and stay.
    """
    data = text.encode("utf-8", "surrogateescape")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        form = encoded[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        yield from (form, form.replace("+", "-").replace("/", "_"))


def _in_hexadecimal(text: str) -> Iterator[str]:
    digits = text.encode("utf-8", "surrogateescape").hex()
    yield from (digits, digits.upper())


_PERCENT = re.compile("%[0-9A-F]{2}")
_SHELL_UNSAFE = re.compile(r"[^\w@%+=:,./-]", re.ASCII)
FORMS: tuple[Callable[[str], Iterator[str]], ...] = (
    _quoted_in_urls,
    _escaped_in_html,
    _escaped_in_json,
    _quoted_in_shells,
    _shown_by_python,
    _in_base64,
    _in_hexadecimal,
)
