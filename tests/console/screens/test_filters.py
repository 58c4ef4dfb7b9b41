"""A filter by state, and the legend in help."""

from __future__ import annotations

from redrive.engine.core.views import STATE_STYLES

from ..conftest import FakeSession, StillClock, press, settle, shown, text_of


async def test_what_changes_its_state_enters_the_filtered_list(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "slash", *"running", "enter")
        assert list(app.screen.graph_view.matches) == ["clean_orders"]
        assert revenue.builder is not None
        revenue.emit(revenue.builder.succeed("clean_orders"))
        await press(app, pilot, "j")
        app.tick(clock.now)
        assert not app.screen.graph_view.matches


async def test_help_begins_with_the_keys_of_the_view_and_has_as_many_lines_as_fit(
    revenue: FakeSession, clock: StillClock
) -> None:
    async with shown(revenue, clock, size=(80, 12)) as (app, pilot):
        await press(app, pilot, "question_mark")
        for rows in (40, 12):
            await pilot.resize_terminal(80, rows)
            await settle(app, pilot)
            assert "Esc back" in text_of(app)
            assert app.screen.view.rows == rows - 5
        await press(app, pilot, "slash", "z", "q", "x", "enter")
        assert "/zqx" in text_of(app), "a search stays visible while it hides lines"
        await press(app, pilot, "slash", "escape")
        assert "/zqx" not in text_of(app) and "Change the run" in text_of(app)
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert text_of(app).count(": ") > 10, "keys with their sentences stand on the first page"
        await pilot.resize_terminal(120, 150)
        await settle(app, pilot)
        text = text_of(app)
        for state, style in STATE_STYLES.items():
            assert f"{app.glyphs.of(style.sign)} {style.word}" in text, state
        assert text.index("Change the run") < text.index("Signs")
        assert "SIGTERM" in text and "slower than usual" in text
        assert text.count("output: ") == 1, "each action once"
