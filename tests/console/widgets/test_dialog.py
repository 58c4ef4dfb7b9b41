"""A question: no is the easier answer, yes needs another key than the one that asked, and many need their number."""

from __future__ import annotations

import pytest
from redrive.console.text.pieces import Line, Piece
from redrive.console.widgets.bars import TextField
from redrive.console.widgets.dialog import Choices, Dialog, PromptField, Question, Reply
from redrive.console.widgets.line_view import LineView


class Backdrop(LineView):
    """Something to ask in front of."""

    def line(self, y: int) -> Line:
        return [Piece(f"behind {y}")]


def question(**more: object) -> Question:
    return Question([Piece("Requeue 3 tasks?")], "requeue 3", trigger="r", **more)  # type: ignore[arg-type]


async def asked(app, what: Question) -> list[Reply | None]:
    """Show the question; the answer will be in the list."""
    replies: list[Reply | None] = []
    app.push_screen(Dialog(what), replies.append)
    await app.pilot.pause()
    await app.pilot.pause()
    return replies


def test_the_key_that_asks_cannot_answer() -> None:
    with pytest.raises(ValueError, match="'r'"):
        Question([], "yes", alternative=("r", "one first"), trigger="r")


async def test_the_focus_is_on_cancel_so_enter_does_nothing(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question())
        assert isinstance(app.focused, Choices)
        await app.press("enter")
        assert replies == [None]


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_escape_is_no(stage, key: str) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question())
        await app.press(key)
        assert replies == [None]


async def test_the_key_of_yes_is_yes_and_the_trigger_is_nothing(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question())
        await app.press("r", "r", "y", "j")
        assert replies == []
        await app.press("a")
        assert replies == [Reply()]


async def test_another_yes_has_a_key_and_a_place_of_its_own(stage) -> None:
    for keys in (["o"], ["l", "right", "right", "enter"]):
        async with stage(Backdrop(), size=(80, 24)) as app:
            replies = await asked(app, question(alternative=("o", "one first")))
            assert any("[ o one first ]" in line for line in app.lines)
            await app.press(*keys)
            assert replies == [Reply(is_alternative=True)]


def test_two_answers_cannot_share_a_key() -> None:
    with pytest.raises(ValueError, match="one key says two things"):
        question(alternative=("a", "one first"))


async def test_a_value_is_asked_for_until_it_can_be(stage) -> None:
    def problem(text: str) -> str | None:
        return None if text.isdigit() else "digits only" if text else "a value is needed"

    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(
            app, question(values=[PromptField("Instead: ", "a number", problem=problem)], reason="required")
        )
        await app.press("tab", *"fix", "enter")
        assert replies == [] and any("a value is needed" in line for line in app.lines)
        await app.press("x", "enter", "enter")
        assert replies == [] and any("digits only" in line for line in app.lines)
        await app.press("backspace", "7", "enter", "enter")
        assert replies == [Reply("fix", ("7",))]


async def test_yes_can_be_chosen(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question())
        await app.press("l", "h", "right", "enter")
        assert replies == [Reply()]


async def test_one_click_chooses_and_only_a_second_one_takes(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question())
        await app.pilot.click(Choices, offset=(16, 0))
        await app.pilot.pause()
        assert replies == []
        await app.pilot.click(Choices, offset=(16, 0), times=2)
        await app.pilot.pause()
        assert replies == [Reply()]


async def test_a_reason_that_is_needed_is_asked_for_until_it_is_there(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question(reason="required"))
        assert isinstance(app.focused, TextField)
        await app.press("space", "enter")
        assert replies == []
        assert any("A reason is needed" in line for line in app.lines)
        await app.press("f", "i", "x", "enter")
        assert replies == [Reply("fix")]


async def test_the_key_of_yes_is_a_letter_in_a_reason(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question(reason="optional"))
        await app.press("a", "q")
        assert replies == []
        await app.press("enter")
        assert replies == [Reply("aq")]


async def test_many_are_confirmed_by_their_number_and_by_nothing_else(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question(type_exactly="1247"))
        await app.press("enter")
        await app.press("1", "2", "4", "enter")
        assert replies == []
        await app.press("tab", "a")
        assert replies == []
        await app.press("shift+tab", "7", "enter")
        assert replies == [Reply()]


async def test_enter_goes_from_the_reason_to_the_number(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        replies = await asked(app, question(reason="optional", type_exactly="25"))
        await app.press("x", "enter", "2", "5", "enter")
        assert replies == [Reply("x")]


async def test_the_exact_list_can_be_read_to_its_end(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        await asked(app, question(preview=[[Piece(f"task-{number:04}")] for number in range(1247)]))
        text = "\n".join(app.lines)
        assert "task-0000" in text and "1 to 10 of 1,247" in text
        await app.press("shift+tab", "G")
        assert "task-1246" in "\n".join(app.lines)


@pytest.mark.parametrize("size", [(80, 24), (40, 15), (120, 40)])
async def test_everything_fits_and_what_is_asked_about_stays_in_view(stage, size: tuple[int, int]) -> None:
    what = question(
        facts=[[Piece("1,247 run again, 1,251 may go on.")], [Piece("3 stay blocked.")]],
        preview=[[Piece(f"task-{number:04}")] for number in range(50)],
        reason="optional",
        type_exactly="1247",
    )
    async with stage(Backdrop(), size=size) as app:
        await asked(app, what)
        text = "\n".join(app.lines)
        for words in (
            "Requeue 3 tasks?",
            "1,247 run again",
            "3 stay blocked.",
            "task-0000",
            "Reason:",
            "1247",
            "Cancel",
        ):
            assert words in text, words
        assert size[0] < 80 or "behind 0" in text


async def test_markup_in_a_question_is_text(stage) -> None:
    async with stage(Backdrop(), size=(80, 24)) as app:
        await asked(app, Question([Piece("[red]x[/] [/broken] [@click=app.bell]y")], "yes"))
        assert any("[red]x[/] [/broken] [@click=app.bell]y" in line for line in app.lines)
