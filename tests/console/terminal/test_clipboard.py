"""What is copied arrives, whole or cut at a character, also through tmux and screen."""

from __future__ import annotations

import re
from base64 import b64decode

from redrive.console.terminal.driver import COPIED_BYTES_MAX, copy_sequence, truncated_to_clipboard


def copied(sequence: str) -> str:
    """What a terminal would put into its clipboard."""
    match = re.fullmatch(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", sequence)
    assert match is not None
    return b64decode(match[1]).decode()


def test_text_arrives_as_it_is() -> None:
    text = "redrive requeue 'a b'\n世界"
    assert copied(copy_sequence(text, {})) == text


def test_what_would_act_when_it_is_pasted_is_made_visible() -> None:
    text = "err\x1b[201~\r\ntouch x\r\x9b\u202e\ud800"
    assert copied(copy_sequence(text, {})) == "err␛[201~␍\ntouch x␍���"


def test_too_much_is_cut_between_characters() -> None:
    text = "世" * COPIED_BYTES_MAX
    assert copied(copy_sequence(text, {})) == truncated_to_clipboard(text) == "世" * (COPIED_BYTES_MAX // 3)


def test_tmux_gets_it_for_itself_and_to_hand_on() -> None:
    sequence = copy_sequence("x", {"TMUX": "/tmp/tmux-0/default,1,0"})
    plain, wrapped = sequence.split("\x1bPtmux;")
    assert copied(plain) == "x"
    assert copied(wrapped.removesuffix("\x1b\\").replace("\x1b\x1b", "\x1b")) == "x"


def test_screen_gets_it_in_pieces_that_it_can_hand_on() -> None:
    sequence = copy_sequence("x" * 1000, {"STY": "1.pts"})
    pieces = re.findall(r"\x1bP(.*?)\x1b\\", sequence, re.DOTALL)
    assert max(map(len, pieces)) < 256
    assert copied("".join(pieces)) == "x" * 1000
