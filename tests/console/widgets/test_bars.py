"""Header, rules and the keys at the foot: each fact in its place, and nothing painted twice."""

from __future__ import annotations

from redrive.console.text.pieces import Piece, Role, plain
from redrive.console.widgets.bars import Bar, KeyBar, Rule

HINTS = [("r", "requeue"), ("s", "skip…"), ("Enter", "open"), ("?", "keys"), ("q", "quit")]


async def test_both_sides_stand_at_their_ends(stage) -> None:
    bar = Bar(2)
    async with stage(bar) as app:
        bar.show([Piece("revenue")], [Piece("eta 01:30")])
        bar.show([Piece("tabs")], row=1)
        await app.pilot.pause()
        assert app.lines[:2] == ["revenue".ljust(31) + "eta 01:30", "tabs"]


async def test_the_right_side_gives_way(stage) -> None:
    bar = Bar()
    async with stage(bar) as app:
        bar.show([Piece("x" * 36)], [Piece("0123456789")])
        await app.pilot.pause()
        assert app.lines[0] == "x" * 36


async def test_the_same_again_is_not_painted(stage, painted) -> None:
    bar = Bar(2)
    async with stage(bar):
        bar.show([Piece("a")], row=1)
        painted(bar)
        bar.show([Piece("a")], row=1)
        assert painted(bar) == []
        bar.show([Piece("b")], row=1)
        assert [region.y for region in painted(bar)] == [1]


async def test_a_rule_can_be_dashed_and_carry_marks(stage) -> None:
    rule = Rule("─")
    async with stage(rule, size=(8, 1)) as app:
        assert app.lines[0] == "────────"
        rule.show("╌", {3: "┬"}, Role.WARNING)
        await app.pilot.pause()
        assert app.lines[0] == "╌╌╌┬╌╌╌╌"


async def test_the_words_on_a_rule_are_for_reading_and_the_part_over_what_has_the_keys_is_lit(stage) -> None:
    rule = Rule("─")
    words = dict(enumerate(" ▾ 3 more ", start=2))
    async with stage(rule, size=(20, 1)) as app:
        rule.show("─", {**words, 15: "┬", **dict.fromkeys(range(16, 20), "━")})
        await app.pilot.pause()
        roles = [(piece.text, piece.role) for piece in rule.line(0)]
        assert roles == [("──", Role.RULE), (" ▾ 3 more ", Role.DIM), ("───┬", Role.RULE), ("━━━━", Role.STRONG)]


async def test_as_many_keys_as_fit_and_always_the_way_to_help(stage) -> None:
    keys = KeyBar()
    async with stage(keys, size=(50, 1)) as app:
        keys.show(HINTS)
        await app.pilot.pause()
        assert app.lines[0] == " r requeue  s skip…  Enter open  q quit  ? keys"
        await app.pilot.resize_terminal(24, 1)
        await app.pilot.pause()
        assert app.lines[0] == " r requeue  ? keys"


async def test_a_message_takes_the_place_of_the_keys_until_it_is_cleared(stage) -> None:
    keys = KeyBar()
    async with stage(keys) as app:
        keys.show(HINTS)
        keys.show_message([Piece("requeued 3")])
        await app.pilot.pause()
        assert app.lines[0] == " requeued 3"
        keys.clear_message()
        await app.pilot.pause()
        assert app.lines[0].startswith(" r requeue")


async def test_a_message_goes_by_itself_but_not_a_later_one(stage) -> None:
    keys = KeyBar()
    async with stage(keys) as app:
        keys.show([("q", "quit")])
        keys.show_message([Piece("first")], seconds=0.01)
        keys.show_message([Piece("second")])
        await app.pilot.pause(0.1)
        assert app.lines[0] == " second"
        keys.show_message([Piece("third")], seconds=0.01)
        await app.pilot.pause(0.2)
        assert app.lines[0] == " q quit  ? keys"


async def test_a_message_that_is_shown_again_and_again_waits_for_one_with_seconds_of_its_own(stage) -> None:
    keys = KeyBar()
    async with stage(keys):
        keys.show_message([Piece("no answer for 3 s")], yields=True)
        keys.show_message([Piece("nothing to undo")], seconds=0.5)
        keys.show_message([Piece("no answer for 4 s")], yields=True)
        assert plain(keys.line(0)).rstrip() == " nothing to undo"
        keys.clear_message()  # its seconds are over
        keys.show_message([Piece("no answer for 5 s")], yields=True)
        assert plain(keys.line(0)).rstrip() == " no answer for 5 s"


async def test_locked_keys_say_why(stage) -> None:
    keys = KeyBar()
    async with stage(keys, size=(60, 1)) as app:
        keys.show(HINTS, locked="read-only")
        await app.pilot.pause()
        assert app.lines[0].startswith(" read-only  r requeue")


async def test_a_long_reason_for_locked_keys_loses_its_last_clauses_before_help_goes(stage) -> None:
    keys = KeyBar()
    async with stage(keys, size=(50, 1)) as app:
        keys.show(HINTS, locked="executor dead · R to resume here · pid 21268 is gone")
        await app.pilot.pause()
        assert app.lines[0] == " executor dead · R to resume here  q quit  ? keys"
        await app.pilot.resize_terminal(80, 1)
        await app.pilot.pause()
        assert "pid 21268 is gone" in app.lines[0] and app.lines[0].endswith("? keys")
