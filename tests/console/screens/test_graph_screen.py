"""The graph by key: moving, zooming, finding, marking, following; the details beside it and on their own screen."""

from __future__ import annotations

import re

import pytest
from redrive.console.model.graph.groups import ZoomStep
from redrive.console.present import group
from redrive.console.screens import task_pages
from redrive.console.screens.task_pages import DetailScreen
from redrive.engine.core.spec import ItemSpec, TaskSpec
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown, text_of
from ..model.runs import EventBuilder, S, failed_task, projection_of


def wide_run(count: int, levels: int = 3) -> FakeSession:
    """Levels of equal families, one below the other."""
    pairs = []
    for level in range(levels):
        parents = [f"part_{level - 1}_{number}" for number in range(3)] if level else []
        pairs += [(f"part_{level}_{number}", parents) for number in range(count // levels)]
    return FakeSession(projection_of(pairs))


def row_with(app, words: str) -> str:
    """The first row of the graph that says this, whatever stands between the sign of a state and the name."""
    sign, _, name = words.rpartition(" ")
    return next(row for row in listed(app) if name in row and sign in row)


def listed(app) -> list[str]:
    """The rows of the list, below a drawing."""
    region = app.screen.graph_view.region
    return rows_of(app)[region.y : region.bottom]


def short_lines(app, y: int) -> list[str]:
    """The words of a row, with lines and bars of one cell each."""
    return re.sub(r"([─━])\1+", r"\1", rows_of(app)[y]).split()


def heading(app) -> str:
    return rows_of(app)[app.screen.heading.region.y]


# --- Rows -----------------------------------------------------------------------------------------------------------


async def test_each_row_says_what_its_task_is_at(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        assert app.selected == "clean_refunds", "the eye begins at the first problem"
        assert "1/3  ok         12s" in row_with(app, "✓ extract_orders")
        assert "running    29s, timeout 5m00" in row_with(app, "● clean_orders")
        assert "41 % done" in row_with(app, "● clean_orders")
        assert "2/3  retry in  7s" in row_with(app, "↻ extract_payments")
        assert "▏  ConnectTimeout" in row_with(app, "↻ extract_payments")
        assert "pending  after extract_payments" in row_with(app, "· clean_payments")
        assert "DEAD     ZeroDivisionError settle.py:87 ×2" in row_with(app, "◆ clean_refunds")
        assert "after 3 tasks, held by clean_refunds" in row_with(app, "aggregate_revenue")
        await press(app, pilot, "G")
        assert "sensing  next check in 34s · 3 checks" in row_with(app, "◷ partner_file")


@pytest.mark.parametrize(("keys", "selected"), [((), "broken"), (("k",), "first")], ids=["untouched", "used"])
async def test_the_first_problem_is_selected_until_a_key_is_pressed(clock: StillClock, keys, selected: str):
    session = FakeSession(projection_of([("first", []), ("broken", [])]))
    async with shown(session, clock) as (app, pilot):
        await emit_events(app, pilot, session, session.builder.start("first"), session.builder.start("broken"))
        await press(app, pilot, *keys)
        assert app.selected == "first"
        failure = session.builder.fail("broken", "DEAD_LETTER", "KeyError", failures=1, dead_letter_kind="permanent")
        await emit_events(app, pilot, session, failure)
        assert app.selected == selected
        assert app.screen.graph_view.graph.selected == selected


async def test_a_second_repaints_countdowns_and_nothing_else(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        asked = []
        view = app.screen.graph_view
        refresh = view.refresh_cells
        view.refresh_cells = lambda x, y, columns, rows=1: (asked.append(y), refresh(x, y, columns, rows))[1]
        clock.now += S
        app.tick(clock.now)
        await settle(app, pilot)
        ticking = [y for y, row in enumerate(listed(app)) if any(sign in row for sign in "●↻◷")]
        assert sorted(set(asked)) == ticking


async def test_a_change_shows_in_its_row_and_in_what_waits_for_it(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        builder = revenue.builder
        number = revenue.projection.tasks["clean_orders"].attempt

        async def emit(kind: str, name: str | None = "clean_orders", **columns) -> None:
            await emit_events(app, pilot, revenue, builder.event(kind, name, **columns))

        await emit_events(app, pilot, revenue, builder.move("clean_refunds", "SKIPPED", skip_cause="operator"))
        assert "skipped  by operator" in row_with(app, "» clean_refunds")
        assert "after 2 tasks" in row_with(app, "aggregate_revenue")
        # the kill of a hung task, step by step
        await emit("attempt.deadline", attempt=number)
        assert "timeout reached" in row_with(app, "● clean_orders")
        await emit("attempt.started", attempt=number, data={"attempt": {"grace_us": 5 * S}})
        await emit("attempt.sigterm", attempt=number)
        assert "SIGTERM sent, SIGKILL in  5s" in row_with(app, "● clean_orders")
        await emit("attempt.sigkill", attempt=number)
        assert "SIGKILL, not gone yet" in row_with(app, "● clean_orders")
        # a retry that is due, and what keeps it
        await emit("run", None, data={"what": "paused", "set": {"paused_since": clock.now}})
        clock.now += 12 * S
        app.tick(clock.now)
        await settle(app, pilot)
        assert "retry    the run is paused" in row_with(app, "↻ extract_payments")


# --- Moving ---------------------------------------------------------------------------------------------------------


async def test_the_cursor_moves_by_rows_along_edges_and_to_matches_and_changes_nothing(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock) as (app, pilot):
        for keys, selected in [
            (("g",), "extract_orders"), (("j",), "clean_orders"), (("h",), "extract_orders"),
            (("l", "l"), "aggregate_revenue"), (("G", "k"), "notify"), (("n",), "clean_refunds"),
            (("slash", *"clean !refunds"), "clean_payments"), (("enter", "n"), "clean_orders"),
            (("escape", "n"), "clean_refunds"),
        ]:  # fmt: skip
            await press(app, pilot, *keys)
            assert app.selected == selected, keys
        app.screen.graph_view.select("clean_orders")
        await settle(app, pilot)
        related = app.screen.graph_view.highlight.related
        assert {"extract_orders", "aggregate_revenue", "notify"} <= set(related), "ancestors and descendants"
        assert "extract_refunds" not in related
        await press(app, pilot, "c")
        assert app.screen.graph_view.critical_path == app.live.forecast.path == ("extract_payments", "clean_payments")
        await press(app, pilot, "c")
        assert app.screen.graph_view.critical_path == ()
        await press(app, pilot, *"jkhlgGnN", "pagedown", "pageup", "ctrl+d", "ctrl+u", "home", "end", "up", "down")
        await press(app, pilot, "left", "right", "tab", "i", "d", "escape", "2")
        assert revenue.commands == []


async def test_n_goes_from_problem_to_problem_in_the_order_of_the_graph(revenue: FakeSession, clock: StillClock):
    failed_task(revenue.projection, "extract_orders", at=clock.now)
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "g", "n")
        assert app.selected == "clean_refunds"
        await press(app, pilot, "n")
        assert app.selected == "extract_orders"
        await press(app, pilot, "N")
        assert app.selected == "clean_refunds"


async def test_following_keeps_the_cursor_where_the_run_is(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "f")
        assert app.selected == "clean_orders"
        builder = revenue.builder.after(1)
        await emit_events(app, pilot, revenue, builder.succeed("clean_orders"), builder.start("extract_payments"))
        assert app.selected == "extract_payments"


# --- Zooming --------------------------------------------------------------------------------------------------------


async def test_the_selection_survives_every_step_of_the_zoom(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        steps = []
        await press(app, pilot, "equals_sign")
        for _ in range(3):
            graph = app.screen.graph_view.graph
            steps.append(graph.zoom)
            assert app.selected == "clean_refunds"
            await press(app, pilot, "minus")
        assert steps == [ZoomStep.DRAWING, ZoomStep.ROWS, ZoomStep.GROUPS]


async def test_large_graphs_begin_as_groups_and_a_problem_opens_its_group(clock: StillClock):
    session = wide_run(300)
    failed_task(session.projection, "part_1_42")
    async with shown(session, clock) as (app, pilot):
        assert app.screen.graph_view.graph.zoom is ZoomStep.GROUPS
        assert "◆ part_1_42" in text_of(app)
        assert "◆1" in row_with(app, "▾ part")
        await press(app, pilot, "G", "enter")
        assert any("· part_2_1 " in row for row in listed(app))
        await press(app, pilot, "h")
        assert not any("· part_2_1 " in row for row in listed(app))


async def test_an_act_on_a_group_means_those_in_it_that_need_a_human(clock: StillClock):
    session = wide_run(300)
    for name in ("part_1_42", "part_1_50", "part_2_7"):
        failed_task(session.projection, name)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "n", "h", "r", "a")
        assert [target[0] for target in session.commands[0].targets] == ["part_1_42", "part_1_50"]


@pytest.mark.long
async def test_the_drawing_stands_above_the_rows_wherever_it_fits_the_whole_width(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        rows = rows_of(app)
        place = next(y for y, row in enumerate(rows) if "◆ clean_refunds ──" in row)
        assert "ZeroDivisionError" in rows[place + 1], "a large terminal has room for the error"
        rule = next(row for row in rows[4:] if row.startswith("──"))
        assert rule.count("┬") == 1, "the panes below begin under the drawing"
        await press(app, pilot, "g")
        assert app.screen.map_view.graph.selected == "extract_orders"
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert "◆ clean_refunds──╯" in text_of(app) and "DEAD" in row_with(app, "◆ clean_refunds")
        await pilot.resize_terminal(60, 20)
        await settle(app, pilot)
        assert not app.screen.map_view.display
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)
        assert rows_of(app)[place] == rows[place]


async def test_lines_of_a_drawing_begin_at_the_end_of_the_text_and_cut_sides_have_a_sign(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock, (44, 24)) as (app, pilot):
        await press(app, pilot, "equals_sign", "G")
        app.screen.graph_view.select("extract_orders")
        await settle(app, pilot)
        assert rows_of(app)[4].startswith(" ✓ extract_orders 12s ──────● clean_orders")
        assert rows_of(app)[5].endswith("›")
        app.screen.graph_view.select("aggregate_revenue")
        await settle(app, pilot)
        assert rows_of(app)[4].startswith("‹")
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert not {"‹", "›"} & set("".join(rows_of(app)[3:10])), "names are as short as the whole drawing needs"


async def test_what_the_list_has_no_rows_for_is_drawn_until_the_operator_wants_the_list(clock: StillClock):
    pairs = [(f"load_{number}", []) for number in range(9)]
    pairs += [(f"check_{number}", [f"load_{number}"]) for number in range(9)]
    session = FakeSession(projection_of([*pairs, ("report", [name for name, _ in pairs[9:]])]))
    async with shown(session, clock) as (app, pilot):
        assert app.screen.graph.is_drawing and "load_0" in rows_of(app)[4] and "report" in text_of(app)
        await pilot.resize_terminal(80, 50)
        await settle(app, pilot)
        assert app.screen.graph.lists_tasks
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        await press(app, pilot, "minus")
        await pilot.resize_terminal(81, 24)
        await settle(app, pilot)
        assert app.screen.graph.lists_tasks


def chain(count: int) -> FakeSession:
    names = [f"step_{number}" for number in range(count)]
    return FakeSession(
        projection_of([(name, names[place - 1 : place] if place else []) for place, name in enumerate(names)])
    )


async def test_a_run_of_one_task_is_a_list(clock: StillClock):
    async with shown(chain(1), clock, (120, 40)) as (app, _):
        assert not app.screen.map_view.display
        assert "step_0 " in rows_of(app)[4]


@pytest.mark.long
async def test_a_chain_is_a_ribbon_above_its_list_of_signs_alone_if_it_is_long(clock: StillClock):
    async with shown(chain(40), clock, (120, 40)) as (app, pilot):
        rows = rows_of(app)
        assert rows[3].startswith("   · step_0 ") and rows[3].endswith("╮")
        assert rows[4].startswith(" ╰─· step_6 ")
        assert "· step_39" in rows[9]
        await pilot.click(offset=(5, 4))
        await settle(app, pilot)
        assert app.selected == "step_6"
    async with shown(chain(300), clock, (120, 40)) as (app, _):
        assert rows_of(app)[3].count("·─·") > 20
        assert "\n · step_0 " in text_of(app)


async def test_a_large_run_has_the_drawing_of_its_groups_with_counts(clock: StillClock):
    pairs = [(f"load_{number}", []) for number in range(50)]
    pairs += [(f"check_{number}", [f"load_{number}"]) for number in range(50)]
    pairs += [("report", [f"check_{number}" for number in range(50)])]
    session = FakeSession(projection_of(pairs))
    failed_task(session.projection, "check_7")
    async with shown(session, clock, (120, 40)) as (app, pilot):
        assert short_lines(app, 3) == ["·", "load", "─◆", "check", "─·", "report"]
        assert short_lines(app, 4) == ["─", "50", "◆─", "0/50", "◆1"]
        builder = EventBuilder(session.projection)
        await emit_events(app, pilot, session, *builder.start("load_3"), *builder.succeed("load_3"))
        assert short_lines(app, 4)[:2] == ["━─", "1/50"]
        await pilot.click(offset=(3, 3))
        await settle(app, pilot)
        assert app.selected == "load_0"


@parametrize_mostly_long("columns", [54, 60, 80])
async def test_a_dead_letter_is_counted_beside_a_name_on_two_lines(columns: int, clock: StillClock):
    """Also where names have all the cells that the drawing reckons with: the cells behind them are free."""
    pairs: list[tuple[str, list[str]]] = []
    for title in ("prepare_references", "assembly_unicycler", "variants_consensus", "report_everything"):
        above = [name for name, _ in pairs[-30:]]
        pairs += [(f"{title}_{number}", above) for number in range(30)]
    session = FakeSession(projection_of(pairs))
    failed_task(session.projection, "assembly_unicycler_7")
    async with shown(session, clock, (columns, 40)) as (app, _):
        first, count, second, dead = rows_of(app)[4].split()[:4]
        assert (first[:4], count, second[:4], dead) == ("refe", "30", "unic", "◆1")


async def test_a_map_is_one_node_with_its_end(clock: StillClock):
    elements = [f"load[{number}]" for number in range(11)]
    pairs = [
        ("list", []),
        *((name, ["list"]) for name in elements),
        ("load", ["list", *elements]),
        ("report", ["load"]),
    ]
    session = FakeSession(projection_of(pairs))
    for number, name in enumerate(elements):
        session.projection.tasks[name].spec = TaskSpec(name, item=ItemSpec("load", "list", number))
    failed_task(session.projection, "load[4]")
    for size in ((80, 24), (120, 40)):
        async with shown(session, clock, size) as (app, pilot):
            assert short_lines(app, 3) == ["·", "list", "─◆", "load", "─·", "report"]
            assert short_lines(app, 4)[1:] == ["0/11", "◆1"]
            assert "▾ load " in text_of(app) and "◆ load[4]" in text_of(app)
            assert ("load[5]" in text_of(app)) is (size[0] > 80), "the elements are there where rows are free"
            await press(app, pilot, "equals_sign")
            assert "load[5]" in text_of(app), "the elements are one step nearer"


async def test_above_the_list_of_a_large_run_stands_its_silhouette_and_the_list_does_not_move(clock: StillClock):
    pairs = [("root", [])]
    for number in range(900):
        pairs += [(f"a{number}x", ["root"]), (f"b{number}y", [f"a{number}x"]), (f"c{number}z", [f"b{number}y"])]
    async with shown(FakeSession(projection_of(pairs)), clock, (120, 40)) as (app, pilot):
        await press(app, pilot, "equals_sign")
        assert app.screen.graph.zoom is ZoomStep.ROWS and app.screen.silhouette_view.display
        app.screen.graph_view.select("b7y")
        await settle(app, pilot)
        assert "2,701 tasks in 4 levels" in text_of(app)
        top = rows_of(app)[13]
        app.screen.graph_view.select("root")
        await settle(app, pilot)
        assert rows_of(app)[13].split()[:3] == top.split()[:3], "the list does not move"


# --- The filter -----------------------------------------------------------------------------------------------------


async def test_a_filter_hides_what_does_not_match_and_says_how_many_do(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "slash", *"clean !refunds", "enter")
        assert heading(app).endswith("/clean !refunds  2 of 10 match")
        assert [row.split()[:2] for row in listed(app)[:2]] == [["●", "clean_orders"], ["·", "clean_payments"]]
        await press(app, pilot, "escape")
        assert "extract_refunds" in text_of(app)
        await press(app, pilot, "slash", *"nothing_like_it", "enter")
        assert heading(app).endswith("0 of 10 match")


@parametrize_mostly_long("steps", range(4), quick=2)
async def test_a_filter_opens_groups_bands_and_signs(clock: StillClock, steps: int):
    async with shown(wide_run(300), clock) as (app, pilot):
        await press(app, pilot, "minus", *["equals_sign"] * steps, "slash", *"part_1_42", "enter")
        assert "1 of 300 match" in text_of(app)
        assert "part_1_42" in row_with(app, "· part_1_42")
        assert "part_1_43" not in text_of(app)
        assert app.selected == "part_1_42"


async def test_a_marks_all_that_match_and_without_a_filter_every_problem(clock: StillClock):
    session = wide_run(300)
    for name in ("part_1_42", "part_1_50", "part_2_7"):
        failed_task(session.projection, name)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "slash", *"part_1_ 2", "enter", "a")
        assert set(app.screen.target_tasks()) == set(app.screen.graph_view.matches)
        assert all(name.startswith("part_1_") for name in app.screen.target_tasks())
        await press(app, pilot, "escape", "escape", "a")
        assert app.screen.target_tasks() == ("part_1_42", "part_1_50", "part_2_7")


async def test_a_marks_every_problem_also_when_others_are_marked_and_the_marks_are_counted(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "g", "space", "space")
        assert "2 marked" in heading(app)
        await press(app, pilot, "a")
        assert app.screen.target_tasks() == ("clean_refunds",)
        assert "1 marked" in heading(app)
        await press(app, pilot, "a")
        assert "marked" not in heading(app)


async def test_what_is_too_large_to_draw_has_no_step_after_its_list(clock: StillClock):
    session = FakeSession(
        projection_of([(f"n{number}x", [f"n{number - 1}x"] if number else []) for number in range(3100)])
    )
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "equals_sign", "equals_sign")
        assert app.screen.graph.zoom is ZoomStep.ROWS
        assert "no step with more detail" in text_of(app)


async def test_a_click_selects_and_a_second_one_opens(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):

        async def click(words: str, times: int = 1) -> None:
            y = next(y for y, row in enumerate(rows_of(app)) if words in row)
            await pilot.click(offset=(rows_of(app)[y].index(words), y), times=times)
            await settle(app, pilot)

        await click("clean_orders")
        assert app.selected == "clean_orders"
        await press(app, pilot, "equals_sign")
        await click("● clean_orders")
        assert app.selected == "clean_orders"
        await click("clean_payments")
        assert app.selected == "clean_payments", "in the drawing what stands there"
        await press(app, pilot, "minus")
        await click("clean_orders", times=2)
        assert isinstance(app.screen, DetailScreen)


async def test_the_page_of_a_group_follows_events_and_clocks_and_rests_otherwise(clock: StillClock, monkeypatch):
    computed: list[str] = []
    for page in (group.group_page, group.members_page):
        monkeypatch.setattr(task_pages, page.__name__, counting(page, computed))
    session = wide_run(300)
    async with shown(session, clock, (120, 40)) as (app, pilot):
        await press(app, pilot, "g")
        assert app.screen.graph.selected_group is not None and computed
        computed.clear()
        clock.now += S
        app.tick(clock.now)
        await settle(app, pilot)
        assert not computed, "nothing of the group depends on the clock"
        await emit_events(app, pilot, session, session.builder.start("part_0_7"))
        for second in (2, 3):
            computed.clear()
            clock.now += S
            app.tick(clock.now)
            await settle(app, pilot)
            assert computed and re.search(rf"part_0_7 +{second}s", text_of(app))


def counting(page, computed: list[str]):
    """A page that notes that it was computed."""

    def counted(*arguments):
        computed.append(page.__name__)
        return page(*arguments)

    return counted
