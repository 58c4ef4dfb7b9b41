"""Records a console as a film: one animated SVG, which stores once each row of cells that several frames show.

The frames lie one below the other, and an animation moves them past a window of the size of one frame.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from shutil import copy
from xml.etree import ElementTree

from redrive.console.app.app import ConsoleApp
from redrive.console.model.launch_context import LaunchContext
from redrive.console.sessions.local import LocalSession
from redrive.console.sessions.session import new_command
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.console.text.pieces import Line, Role, plain
from redrive.engine import examples
from redrive.engine.executor import host
from redrive.engine.executor.run_options import RunOptions

SIZE = (120, 34)
FRAME_SECONDS = 1.3
_READING_FRAMES = 1  # before the keys of a stage
_LAST_FRAMES = 6
_FRAMES_MAX = 120  # of a demo that goes as its tour says: 75
_RICH_CELL = (12.2, 24.4)  # pixels, of the pictures that Rich makes
_CELL, _BASE_LINE, _MARGIN = (12, 24), 18, 12  # pixels of the film
_BACKGROUND, _TEXT = "#292929", "fill: #868887"  # as in the pictures; most text is dim
_SVG = "{http://www.w3.org/2000/svg}"
_STYLE = re.compile(r"\.[\w-]+-(r\d+) \{([^}]*)\}")

_REASON = "forbidden"
_LAST_STAGE = " 8 of 8 done"


def keys_of_line(line: Line) -> list[str]:
    """The keys that the line of the tour asks for, as Textual names them, with a reason that is written before."""
    labels = [piece.text for piece in line if piece.role is Role.KEY]
    key = {"Esc": "escape", "Enter": "enter"}.get(labels[0], labels[0]) if len(labels) == 1 else ""
    return [*(_REASON if "write" in plain(line) else ""), key] if key else []


async def record_demo(folder: Path) -> str:
    """Run the demo in a console without a terminal, by the keys of its tour. Return an animated SVG.

    The run is in a folder of its own, with a copy of the flow: the film shows no path of this machine.
    """
    flow, state = str(copy(Path(examples.__file__).with_name("demo.py"), folder)), str(folder / "demo.db")
    await asyncio.to_thread(host.spawn, flow=flow, state=state, run_id=None, options=asdict(RunOptions(stay=True)))
    session = await LocalSession.open(state)
    context = LaunchContext(state, started_here=True, has_tour=True)
    app = ConsoleApp(session, tty=Tty(TerminalCapabilities()), launch=context)
    try:
        return film(await record(app), FRAME_SECONDS)
    finally:
        app.live.close()
        await session.send(new_command("stop", None, options={"how": "now"}))
        await session.close()


async def record(app: ConsoleApp) -> list[str]:
    """Pictures of the console, one each ``FRAME_SECONDS``, while the keys of the tour are pressed, until the run ends.

    Raises AssertionError if it does not end in time, and what the console has failed with.
    """
    console = asyncio.create_task(app.run_async(headless=True, size=SIZE, mouse=False))
    frames: list[str] = []
    for keys in _presses(app):
        if console.done() or len(frames) == _FRAMES_MAX:
            break
        for key in keys:
            app.simulate_key(key)
        await asyncio.sleep(FRAME_SECONDS)
        app.call_later(_append_picture, app, frames)
    app.exit()
    await console
    if app.failure is not None:
        raise app.failure
    assert len(frames) < _FRAMES_MAX, "the demo did not go on as its tour says: record it on a calm machine"
    return frames


def _append_picture(app: ConsoleApp, frames: list[str]) -> None:
    """Runs in the task of the app: text that is rendered for the first time asks for its context."""
    frames.append(app.export_screenshot(title="redrive demo", simplify=True))


def _presses(app: ConsoleApp) -> Iterator[Sequence[str]]:
    """The keys before each frame: those that the line of the tour names, once it could be read."""
    while not plain(app.tour_line).startswith(_LAST_STAGE):
        yield from [()] * _READING_FRAMES
        *reason, key = keys_of_line(app.tour_line) or [""]
        yield from [reason] if reason else []
        yield [key] if key else ()
    yield ("2",)
    while app.live.board is not None and app.live.board.projection.run.ended_at is None:
        yield ()
    yield from [()] * _LAST_FRAMES


def film(frames: Sequence[str], frame_seconds: float) -> str:
    """One animated SVG of SVG pictures of one size, as Rich exports them; equal consecutive pictures become one."""
    styles = {_TEXT: 0}
    rows: dict[str, int] = {}
    shown: list[list[int]] = []
    starts: list[float] = []
    for place, picture in enumerate(frames):
        drawn = [rows.setdefault(row, len(rows)) for row in _rows_of(picture, styles)]
        if not shown or shown[-1] != drawn:
            shown.append(drawn)
            starts.append(100 * place / len(frames))
    empty = rows.get("")
    columns, height = SIZE[0] * _CELL[0], SIZE[1] * _CELL[1]
    moves = (f"{start:.2f}%{{transform:translateY(-{at * height}px)}}" for at, start in enumerate(starts))
    rules = "".join(f".s{number}{{{css}}}" for css, number in styles.items())
    defined = "".join(f'<g id="r{number}">{row}</g>' for row, number in rows.items())
    uses = "".join(
        f'<use href="#r{row}" y="{at * height + y * _CELL[1] + _BASE_LINE}"/>'
        for at, drawn in enumerate(shown)
        for y, row in enumerate(drawn)
        if row != empty
    )
    size = f"{columns + 2 * _MARGIN} {height + 2 * _MARGIN}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {size}"><style>'
        f"text{{font:20px 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;{_TEXT}}}{rules}"
        f"@keyframes film{{{''.join(moves)}}}"
        f".film{{animation:film {len(frames) * frame_seconds:.1f}s step-end infinite}}</style><defs>"
        f'<clipPath id="window"><rect width="{columns}" height="{height}"/></clipPath>{defined}</defs>'
        f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>'
        f'<g transform="translate({_MARGIN} {_MARGIN})" clip-path="url(#window)"><g class="film">{uses}</g></g></svg>\n'
    )


def _rows_of(picture: str, styles: dict[str, int]) -> list[str]:
    """The rows of a picture as SVG, the base line of each at 0.

    ``styles``: CSS -> the number of its class; gets new ones.
    """
    root = ElementTree.fromstring(picture)
    css = dict(_STYLE.findall("".join(one.text or "" for one in root.iter(f"{_SVG}style"))))
    rows: list[list[str]] = [[] for _ in range(SIZE[1])]
    for one in root.findall(f"{_SVG}g")[-1].iter():
        x, y = (float(one.get(name, "0")) / size for name, size in zip("xy", _RICH_CELL, strict=True))
        at = round(x) * _CELL[0]
        if one.tag == f"{_SVG}rect":
            width = round(float(one.attrib["width"]) / _RICH_CELL[0]) * _CELL[0]
            box = f'x="{at}" y="-{_BASE_LINE}" width="{width}" height="{_CELL[1]}"'
            rows[int(y)].append(f'<rect fill="{one.attrib["fill"]}" {box}/>')
        elif one.tag == f"{_SVG}text" and (text := (one.text or "").replace("\xa0", " ").rstrip()):
            number = styles.setdefault(css[one.attrib["class"].rpartition("-")[2]].strip(), len(styles))
            style = f' class="s{number}"' if number else ""
            length = f' textLength="{len(text) * _CELL[0]}"' if len(text) > 2 else ""
            rows[int(y)].append(f'<text{style} x="{at}"{length}>{escape(text, quote=False)}</text>')
    return ["".join(row) for row in rows]
