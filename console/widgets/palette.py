"""What the roles of pieces look like: the only thing that a widget knows about themes."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from ..present.pieces import Role

_NOTHING = Style.null()
_MIXED_MAX = 1024


class Palette:
    """Role -> style. ``styles`` may leave roles out: they look like plain text.

    A style of a whole row (the cursor, a mark) lies over those of its pieces. Where both are in reverse video the
    piece turns back, so that it still stands out from its row without any colour.
    """

    def __init__(self, styles: Mapping[str, Style]) -> None:
        self._styles = dict(styles)
        self._mixed: dict[tuple[str, str], Style] = {}

    def style(self, role: str, over: str | None = None) -> Style:
        """The style of a role, with that of another role laid over it."""
        if over is None:
            return self._styles.get(role, _NOTHING)
        mixed = self._mixed.get((role, over))
        if mixed is None:
            if len(self._mixed) >= _MIXED_MAX:
                self._mixed.clear()
            mixed = self._mixed[role, over] = _mix(self.style(role), self.style(over))
        return mixed


def _mix(under: Style, over: Style) -> Style:
    mixed = under + over
    return mixed + Style(reverse=False) if under.reverse and over.reverse else mixed


#: No colours at all: for tests, and until a theme is read.
PLAIN = Palette(
    {
        Role.DIM: Style(dim=True),
        Role.STRONG: Style(bold=True),
        Role.TITLE: Style(bold=True),
        Role.RULE: Style(dim=True),
        Role.DONE: Style(dim=True),
        Role.PENDING: Style(dim=True),
        Role.SKIPPED: Style(dim=True),
        Role.FAILED: Style(bold=True),
        Role.HUMAN: Style(reverse=True),
        Role.CURSOR: Style(reverse=True),
        Role.MATCH: Style(underline=True),
        Role.KEY: Style(bold=True),
        Role.WARNING: Style(bold=True),
        Role.STALE: Style(dim=True),
    }
)


def palette_of(app: object) -> Palette:
    """The ``palette`` of an App; plain if it has none. Asked for every row that is painted."""
    palette: Palette = getattr(app, "palette", PLAIN)
    return palette
