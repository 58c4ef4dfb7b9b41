"""One line of text: typed, pasted, recalled, completed; never more than visible characters."""

from __future__ import annotations

import pytest
from redrive.console.text.pieces import Piece
from redrive.console.widgets.bars import TEXT_MAX, Footer, TextField
from redrive.console.widgets.table import VirtualTable
from textual import events


async def test_typing_reports_every_change(stage) -> None:
    field = TextField("Reason: ")
    async with stage(field) as app:
        await app.press("a", "b", "space", "C")
        assert field.text == "ab C"
        assert [message.text for message in app.messages_of(TextField.Changed)] == ["a", "ab", "ab ", "ab C"]
        assert app.lines[0] == "Reason: ab C"


@pytest.mark.parametrize(
    ("keys", "text", "at"),
    [
        (["backspace"], "one tw", 6),
        (["home", "delete"], "ne two", 0),
        (["left", "left", "x"], "one txwo", 6),
        (["ctrl+a", "ctrl+k"], "", 0),
        (["left", "ctrl+u"], "o", 0),
        (["ctrl+w"], "one ", 4),
        (["ctrl+w", "ctrl+w", "ctrl+w"], "", 0),
        (["home", "left", "backspace"], "one two", 0),
        (["end", "right", "ctrl+d"], "one two", 7),
    ],
)
async def test_editing(stage, keys: list[str], text: str, at: int) -> None:
    field = TextField(text="one two")
    async with stage(field) as app:
        await app.press(*keys)
        assert (field.text, field.cursor) == (text, at)


async def test_a_paste_is_one_visible_line_and_enters_nothing(stage) -> None:
    field = TextField()
    async with stage(field) as app:
        app.post_message(events.Paste("rm -rf /\r\n\x1b[31mred\x07\u202e\n"))
        await app.pilot.pause()
        assert field.text == "rm -rf / ␛[31mred␇�"
        assert app.messages_of(TextField.Submitted) == []


async def test_text_is_bounded(stage) -> None:
    field = TextField()
    async with stage(field) as app:
        app.post_message(events.Paste("x" * 10 * TEXT_MAX))
        await app.press("y")
        assert len(field.text) == TEXT_MAX


async def test_enter_and_escape_are_reported(stage) -> None:
    field = TextField(text="why")
    async with stage(field) as app:
        await app.press("enter", "escape")
        assert [message.text for message in app.messages_of(TextField.Submitted)] == ["why"]
        assert len(app.messages_of(TextField.Cancelled)) == 1


async def test_the_cursor_of_a_long_text_stays_in_view(stage) -> None:
    field = TextField(": ")
    async with stage(field, size=(12, 1)) as app:
        await app.press(*"0123456789abcdef")
        assert app.lines[0] == ": 89abcdef"
        await app.press("home")
        assert app.lines[0].startswith(": 0123456")


async def test_a_field_that_becomes_wider_shows_more_of_its_start(stage) -> None:
    field = TextField(": ")
    async with stage(field, size=(6, 1)) as app:
        await app.press(*"abcdef")
        assert app.lines[0] == ": ef"
        await app.pilot.resize_terminal(20, 1)
        await app.pilot.pause()
        assert app.lines[0] == ": abcdef"


async def test_wide_characters_are_counted_as_they_are_wide(stage) -> None:
    field = TextField(": ")
    async with stage(field, size=(12, 1)) as app:
        app.post_message(events.Paste("世界" * 10))
        await app.pilot.pause()
        assert app.screen._compositor.render_strips()[0].cell_length == 12
        assert app.cursor_position.x < 12


async def test_an_empty_field_shows_its_hint(stage) -> None:
    field = TextField("Reason: ", hint="goes into the journal")
    async with stage(field) as app:
        assert "goes into the journal" in app.lines[0]
        await app.press("x")
        assert "journal" not in app.lines[0]


async def test_the_foot_shows_keys_until_something_is_asked_for(stage) -> None:
    table = VirtualTable(lambda key, width: [Piece(key)])
    foot = Footer()
    async with stage(table, foot, size=(40, 5)) as app:
        foot.key_bar.show([("r", "requeue")])
        await app.pilot.pause()
        assert app.lines[4] == " r requeue  ? keys"
        foot.open_prompt("/", hint="filter")
        foot.open_prompt("/")
        await app.press("a", "b")
        assert app.lines[4] == " /ab"
        foot.close_prompt()
        await app.pilot.pause()
        assert app.focused is table
        assert app.lines[4] == " r requeue  ? keys"


async def test_a_prompt_that_opens_again_is_empty(stage) -> None:
    foot = Footer()
    async with stage(foot, size=(40, 5)) as app:
        foot.open_prompt("/", "old")
        await app.press("x", "enter")
        assert app.messages_of(TextField.Submitted)[-1].text == "oldx"
        foot.close_prompt()
        foot.open_prompt(":")
        await app.pilot.pause()
        assert foot.prompt.text == ""
        assert app.lines[0] == " :"
