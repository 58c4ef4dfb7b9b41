"""A small console for the tests of the terminal: rows, countdowns, acts, dialogs. Writes down what it did.

    python demo_app.py FOLDER [--rows N] [--tick SECONDS] [--per-tick N] [--full] [--events N] [--hostile JSON-LIST]
        [--crash] [--splash-only SECONDS]

With ``--crash`` the key that copies raises an error. ``FOLDER/acts`` gets a line for every act that changed something;
SIGUSR1 writes ``FOLDER/stats``: the longest time that the event loop did not turn (and begins anew), paints, frames,
bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from redrive.console.terminal.capabilities import detect_capabilities
from redrive.console.terminal.tty import Tty

ACTS = ("requeue", "skip", "pause", "hurry", "undo", "stop_task")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tick", type=float, default=0.0)
    parser.add_argument("--per-tick", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="repaint everything at every tick")
    parser.add_argument("--events", type=int, default=0, help="changes a second of rows anywhere, painted at ticks")
    parser.add_argument("--hostile", type=Path)
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--splash-only", type=float, default=0.0)
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed(sys.argv[1:])
    terminal = detect_capabilities()
    if terminal.unsupported_reason:
        print(f"plain: {terminal.unsupported_reason}")
        return 0
    with Tty(terminal) as hold:
        hold.splash("redrive - demo")
        if options.splash_only:
            time.sleep(options.splash_only)
        app = build(hold, options)
        code = app.run()
    if app.failure is not None:
        from redrive.console.app.launch import crash_lines

        print(*crash_lines(app.failure), sep="\n", file=sys.stderr)
        return 1
    return int(code or app.return_code or 0)


def build(hold: Tty, options: argparse.Namespace):
    """Imports Textual, after the splash."""
    from redrive.console.app.base_app import ConsoleBase
    from redrive.console.keys.actions import Action, ScreenName, footer_of
    from redrive.console.keys.keymap import Refusal, key_label
    from redrive.console.terminal.driver import ConsoleDriver
    from redrive.console.text.pieces import Line, Piece, Role
    from redrive.console.text.role_styles import RoleStyles
    from redrive.console.text.text import pad, pad_left, sanitize
    from redrive.console.widgets.bars import Bar, Footer, Rule, bindings_of
    from redrive.console.widgets.dialog import Dialog, Question, Reply
    from redrive.console.widgets.table import VirtualTable
    from rich.style import Style
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.screen import Screen

    colours = {
        Role.RUNNING: Style(color="cyan"),
        Role.WAITING: Style(color="yellow"),
        Role.FAILED: Style(color="red"),
        Role.HUMAN: Style(color="magenta", reverse=True),
        Role.DONE: Style(dim=True),
        Role.CURSOR: Style(reverse=True),
        Role.KEY: Style(bold=True),
        Role.RULE: Style(dim=True),
        Role.MARK: Style(bold=True),
    }
    signs = (("✓", Role.DONE), ("●", Role.RUNNING), ("↻", Role.WAITING), ("✗", Role.FAILED), ("◆", Role.HUMAN))

    class Demo(ConsoleBase):
        BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.INBOX)

        def __init__(self) -> None:
            has_colours = bool(hold.capabilities.colours)
            styles = {str(role): one if has_colours else one.without_color for role, one in colours.items()}
            super().__init__(hold, palette=RoleStyles(styles))
            self.ticks = 0
            self.paints = 0
            self.skipped = 0
            self.longest_gap = 0.0
            self.hostile: list[str] = json.loads(options.hostile.read_text()) if options.hostile else []
            self.changes = [0] * options.rows
            self.dirty: set[int] = set()
            self.table: VirtualTable[int] = VirtualTable(self.row, mark_sign="▪")
            self.header = Bar(2)
            self.foot = Footer()

        def compose(self) -> ComposeResult:
            yield self.header
            yield Rule("─")
            yield self.table
            yield Rule("─")
            yield self.foot

        def on_mount(self) -> None:
            left: Line = [Piece(" revenue · run-2026-04-25 · local  "), *(Piece(text[:9]) for text in self.hostile)]
            self.header.show(left, [Piece("● running", Role.RUNNING), Piece(" 5/12 ")])
            self.header.show([Piece(" 1 Runs  2 Graph  3 Timeline  4 Inbox ◆2")], [Piece("tick 0 ")], row=1)
            self.foot.key_bar.show(
                [(key_label(action.keys[0]), action.label) for action in footer_of(ScreenName.INBOX)]
            )
            self.table.set_order(range(options.rows))
            self.table.focus()
            self.run_worker(self.watch_loop())
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.write_stats)
            if options.tick:
                self.set_interval(options.tick, self.tick)
            if options.events:
                self.run_worker(self.change_rows())

        def row(self, key: int, width: int) -> Line:
            sign, role = signs[(key + self.changes[key]) % len(signs)]
            seconds = max(3600 - self.ticks, 0) if key < options.per_tick else 7
            hostile = key % 2 == 0 and key // 2 < len(self.hostile)
            name = pad(sanitize(self.hostile[key // 2]) if hostile else f"task_{key:05}", 28)
            due = f"{seconds // 60:02}:{seconds % 60:02}"
            return [
                Piece(sign, role),
                Piece(f" {name} "),
                Piece(pad_left("2/5", 5)),
                Piece(f"  retry in {due}  ", role),
                Piece(f"ConnectTimeout {self.ticks if options.full else ''}", Role.DIM),
            ]

        def tick(self) -> None:
            self.ticks += 1
            if self.is_output_busy:
                self.skipped += 1
                return
            self.paint()

        def paint(self) -> None:
            self.paints += 1
            if options.full:
                self.table.refresh()
                self.header.show([Piece(" 1 Runs  2 Graph")], [Piece(f"tick {self.ticks} ")], row=1)
            else:
                self.table.rows_changed(self.dirty.union(range(options.per_tick)))
                self.dirty.clear()

        def output_drained(self) -> None:
            if options.tick:
                self.paint()

        async def change_rows(self) -> None:
            """As a feed of events would: the model changes at its own pace, and only remembers what changed."""
            dice = random.Random(1)
            owed = 0.0
            while True:
                await asyncio.sleep(0.01)
                owed += options.events / 100
                for _ in range(int(owed)):
                    key = dice.randrange(options.rows)
                    self.changes[key] += 1
                    self.dirty.add(key)
                owed -= int(owed)

        async def watch_loop(self) -> None:
            before = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - before - 0.01)
                before = now

        def write_stats(self) -> None:
            driver = self.console_driver
            output = driver.output if isinstance(driver, ConsoleDriver) else None
            stats = {
                "longest_gap": self.longest_gap,
                "ticks": self.ticks,
                "paints": self.paints,
                "skipped": self.skipped,
                "frames": output.frames if output else 0,
                "bytes": output.bytes_written if output else 0,
            }
            self.longest_gap = 0.0
            temporary = options.folder / "stats.new"
            temporary.write_text(json.dumps(stats))
            os.replace(temporary, options.folder / "stats")

        def handler(self, action: Action, screen: Screen) -> Callable[[], object] | None:
            """Methods of this App stand for what the table names."""
            return getattr(self, f"action_{action.name}", None) or super().handler(action, screen)

        def wrote(self, act: str) -> None:
            with open(options.folder / "acts", "a") as file:
                file.write(f"{act} {self.table.cursor_key}\n")

        def key_refused(self, refusal: Refusal) -> None:
            self.foot.key_bar.show_message([Piece(refusal.value, Role.WARNING)], seconds=3)

        def action_filter(self) -> None:
            self.foot.open_prompt("/")

        def on_text_field_cancelled(self) -> None:
            self.foot.close_prompt()

        def on_text_field_submitted(self) -> None:
            self.foot.close_prompt()

        async def action_quit(self) -> None:
            self.exit(0)

        def action_output(self) -> None:
            with self.suspend():
                subprocess.run(["sh", "-c", "echo this is the pager; read line"])

        def action_copy(self) -> None:
            if options.crash:
                raise ZeroDivisionError("division by zero")
            self.copy_to_clipboard("task_00000")

        def action_redraw(self) -> None:
            self.redraw()

        def action_resume_here(self) -> None:
            self.ask("resume_here", "R")

        def action_skip(self) -> None:
            question = Question(
                title=[Piece("Skip 3 tasks", Role.TITLE)],
                facts=[[Piece("4 tasks may go on without them.")]],
                preview=[[Piece(f"task_{number:05}")] for number in range(30)],
                accept="skip 3",
                trigger="s",
                reason="required",
            )
            self.push_screen(Dialog(question), lambda reply: self.replied("skip", reply))

        def action_stop_task(self) -> None:
            self.ask("stop_task", "x")

        def ask(self, act: str, trigger: str) -> None:
            question = Question([Piece(f"{act}?", Role.TITLE)], f"yes, {act}", trigger=trigger)
            self.push_screen(Dialog(question), lambda reply: self.replied(act, reply))

        def replied(self, act: str, reply: Reply | None) -> None:
            if reply is not None:
                self.wrote(f"{act} {reply.reason}".strip())

    def acting(name: str):
        def act(self: Demo) -> None:
            self.wrote(name)

        return act

    for name in ACTS:
        if not hasattr(Demo, f"action_{name}"):
            setattr(Demo, f"action_{name}", acting(name))
    return Demo()


if __name__ == "__main__":
    sys.exit(main())
