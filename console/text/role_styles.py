"""Role -> style: all that widgets, lists in colours and pages know of themes."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from .pieces import SGR_ROLE, Role

_NOTHING = Style.null()


class RoleStyles:
    """Role -> style. ``styles`` may leave roles out, which then have the style of plain text.

    A style of a whole row (the cursor, a mark) lies over those of its pieces. In reverse video it is a bar of one
    colour: every colour of the letters would be another ground. Only a piece that is in reverse video itself, the
    accent, keeps its look; without a colour it turns back, so that it still stands out.
    """

    def __init__(self, styles: Mapping[str, Style]) -> None:
        self._styles = dict(styles)
        self._by_row_role: dict[str | None, _StylesUnder] = {}

    def styles_under(self, over: str | None = None) -> _StylesUnder:
        found = self._by_row_role.get(over)
        if found is None:
            found = self._by_row_role[over] = _StylesUnder(self, over)
        return found

    def style(self, role: str, over: str | None = None) -> Style:
        return self.styles_under(over)[role]

    def mix(self, role: str, over: str | None) -> Style:
        """Make the style of a role under another one. Subclasses say what differs."""
        under = self._own_style(role) if role.startswith(SGR_ROLE) else self._styles.get(role, _NOTHING)
        return under if over is None else mix(under, self._styles.get(over, _NOTHING))

    def _own_style(self, role: str) -> Style:
        """The style of a role of ``text/pieces.py``; plain text unless a subclass shows the colours of tasks."""
        return self._styles.get(Role.TEXT, _NOTHING)


class _StylesUnder(dict[str, Style]):
    """Role -> style under one row's role; made when it is first asked for, since every piece on the screen asks."""

    def __init__(self, palette: RoleStyles, over: str | None) -> None:
        super().__init__()
        self._palette = palette
        self._over = over

    def __missing__(self, role: str) -> Style:
        style = self[role] = self._palette.mix(role, self._over)
        return style


def mix(under: Style, over: Style) -> Style:
    """The style of a piece with that of its row laid over it."""
    if not over.reverse:
        return under + over
    if under.reverse:
        return under if under.color is not None else under + Style(reverse=False)
    return over + Style(bold=under.bold, underline=under.underline)


NO_STYLES = RoleStyles({})  # of an App without themes


def role_styles_of(app: object) -> RoleStyles:
    """The role styles of an App; those of plain text if it has none."""
    palette: RoleStyles = getattr(app, "palette", NO_STYLES)
    return palette
