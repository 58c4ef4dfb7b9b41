"""Texts that act on a terminal, a page, a shell, a statement or a reader of lines if somebody lets them."""

from __future__ import annotations

from hypothesis import strategies as st

#: What a terminal acts on, what changes the order of reading, and what ends a line for some readers.
FORBIDDEN = {
    *map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))),
    *map(chr, (*range(0xD800, 0xE000), *range(0xE0000, 0xE0080))),
    *"\u200b\u200e\u200f\u2028\u2029\ufeff",
} - {"\n"}
HOSTILE = (
    *("<script>alert(1)</script>", "' onload='x", "&lt;", "'; DROP TABLE task; --", "$(touch PWNED)", "`touch PWNED`"),
    *("\n; touch PWNED #", "-rf", "%s%n", "[bold]x[/bold]", "\x1b[201~\r"),
    *("\x1b]0;PWN\x07", "\x1b[2J\x1bc", "\x9b31m", "\x9d0;x\x9c", "\x7f"),
    *("\u202e", "\u2028", "\U000e0041", "\ud800"),
)
texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=6)), min_size=1, max_size=6).map("".join)
