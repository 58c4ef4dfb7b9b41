"""The private names of Textual that the console uses mean in the installed version what they meant when it was made."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redrive.console.terminal.driver  # noqa: F401  # sets the period
from redrive.console.terminal import textual_internals
from redrive.console.terminal.textual_internals import AppInternals, Update, XTermParser, painted_parts
from support.marks import for_each
from support.waiting import LIMIT_SECONDS, wait_until_async
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App, ComposeResult
from textual.color import Color
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Label


class Drawn(AppInternals):
    """Draws into lists."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[Update] = []
        self.label = Label("one")

    def compose(self) -> ComposeResult:
        yield self.label

    @property
    def draws_updates(self) -> bool:
        return True

    def draw_update(self, screen: Screen[Any], update: Update) -> None:
        self.updates.append(update)


def texts_of(update: Update) -> list[tuple[int, int, str]]:
    return [(x, y, "".join(strip.text for strip in strips).rstrip()) for x, y, strips in painted_parts(update)]


async def test_what_textual_composes_is_handed_over_with_its_place() -> None:
    app = Drawn()
    async with app.run_test(size=(20, 4)) as pilot:
        await pilot.pause()
        whole = [update for update in app.updates if isinstance(update, LayoutUpdate)]
        assert any((0, 0, "one") in texts_of(update) for update in whole)
        app.updates.clear()
        app.label.refresh()
        await pilot.pause()
        parts = [update for update in app.updates if isinstance(update, ChopsUpdate)]
        assert any((0, 0, "one") in texts_of(update) for update in parts)


def test_parts_of_both_kinds_of_update() -> None:
    strip = Strip.blank(3)
    assert list(painted_parts(LayoutUpdate([[strip], [strip]], Region(2, 5, 3, 2)))) == [
        (2, 5, [strip]),
        (2, 6, [strip]),
    ]
    chops = ChopsUpdate([{0: strip, 3: None, 6: strip}], [(0, 0, 4)], [[3, 6, 9]])
    assert list(painted_parts(chops)) == [(0, 0, (strip,))]


async def test_a_timer_whose_time_has_passed_when_it_starts_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine holds the process up for a minute whenever a timer has read the clock."""
    clock = itertools.count(step=60)
    app, fired = Drawn(), asyncio.Event()
    async with app.run_test():
        monkeypatch.setattr("textual.timer._time.get_time", lambda: float(next(clock)))
        app.set_timer(0.001, fired.set)
        await asyncio.wait_for(fired.wait(), LIMIT_SECONDS)


class View(Screen[None]):
    """One line of text."""

    CSS = "View { background: ansi_red; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Label(self.text)


class Switched(Drawn):
    """Two views. ``delay_seconds``: how long Textual paints nothing after a change of the view."""

    MODES: ClassVar[dict[str, Any]] = {name: partial(View, f"view {name}") for name in ("a", "b")}
    delay_seconds = 0.0

    def delay_update(self, delay: float = 0.0) -> None:
        super().delay_update(self.delay_seconds)

    def shows(self, text: str) -> bool:
        return any((0, 0, text) in texts_of(update) for update in self.updates)


async def test_a_view_that_was_shown_before_is_painted_without_a_delay() -> None:
    app = Switched()
    async with app.run_test(size=(20, 4)):
        for mode in ("a", "b"):
            app.switch_mode(mode)
            await wait_until_async(partial(app.shows, f"view {mode}"))
        app.delay_seconds = 2 * LIMIT_SECONDS
        for mode in ("a", "b", "a"):
            app.updates.clear()
            app.switch_mode(mode)
            await wait_until_async(partial(app.shows, f"view {mode}"))


async def test_a_new_view_has_its_styles_without_another_pass_over_the_view_that_is_left() -> None:
    app, passes = Switched(), []
    async with app.run_test(size=(20, 4)) as pilot:
        await pilot.pause()
        app.refresh_css = lambda animate=True: passes.append(animate)  # type: ignore[method-assign]
        app.switch_mode("a")
        await wait_until_async(partial(app.shows, "view a"))
        assert app.screen.styles.background == Color.parse("ansi_red")
    assert passes == []


def test_the_parser_makes_keys_of_bytes_and_takes_a_debug_flag() -> None:
    found = list(XTermParser(False).feed("a\x1b[A"))
    assert [message.key for message in found if isinstance(message, events.Key)] == ["a", "up"]


@for_each(
    "name, parameters",
    [
        ("_load_screen_css", ["self", "screen"]),
        ("delay_update", ["self", "delay"]),
        ("_display", ["self", "screen", "renderable"]),
        ("_set_pointer_shape", ["self", "shape"]),
        ("_fatal_error", ["self"]),
        ("post_display_hook", ["self"]),
    ],
)
def test_what_is_overridden_or_called_exists_with_these_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(App, name)).parameters) == parameters


class Drawable(ValueError):
    """An error that Textual would print itself."""

    def __rich__(self) -> str:
        return "secret"


@pytest.mark.parametrize("error", [ValueError("secret"), Drawable("secret")], ids=["plain", "drawable"])
async def test_a_crash_ends_the_app_with_its_error_and_prints_nothing(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:

    class Crashing(Drawn):
        def on_mount(self) -> None:
            self.crash(error)

    app = Crashing()
    await asyncio.wait_for(app.run_async(headless=True), LIMIT_SECONDS)
    assert (app.failure, app.return_code) == (error, 1)
    assert "secret" not in "".join(capfd.readouterr())


def test_what_is_read_of_an_app_exists() -> None:
    app = Drawn()
    assert (app._batch_count, app.failure) == (0, None)


def test_no_other_module_of_the_console_imports_a_private_module_of_textual() -> None:
    here = Path(textual_internals.__file__)
    others = [path for path in here.parents[1].rglob("*.py") if path != here]
    assert [path.name for path in others if "from textual._" in path.read_text("utf-8")] == []


@pytest.mark.long
def test_no_handler_of_a_message_calls_that_of_a_base_class_which_textual_calls_as_well() -> None:
    folder = Path(textual_internals.__file__).parents[1]
    handlers = [
        (f"{path.name}: {node.name}", ast.unparse(node))
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_?on_(?!event\b)", node.name)
    ]
    assert len(handlers) > 100
    twice = [name for name, text in handlers if "super().on_" in text and ".prevent_default()" not in text]
    assert twice == []


def test_each_private_name_has_its_reason() -> None:
    """In the list of the module: what is used or overridden of Textual that starts with an underscore."""
    tree = ast.parse(inspect.getsource(textual_internals))
    own = {"_shown_modes", "_paint_known_mode"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    used |= {
        node.name
        for cls in tree.body
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and re.match("_[a-z]", node.name)
    }
    reasons = ast.get_docstring(tree) or ""
    assert sorted(name for name in used - own - {"__init__"} if name not in reasons) == []
