"""Textual's bindings, made from the table of actions; ids are names of actions, so ``App.set_keymap`` can move them."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from ..keys.actions import BY_NAME, ScreenName, action_named, actions_of
from ..keys.keymap import key_name

#: Moves that every list understands.
PAGING = ("down", "up", "top", "bottom", "page_down", "page_up", "half_page_down", "half_page_up")


def bindings(*names: str) -> list[BindingType]:
    """For ``BINDINGS``: the keys of an action make the call of its row (``ConsoleBase.action_handle``).

    Actions without a key are left out; those on fixed keys have no id.
    """
    return [
        Binding(
            ",".join(map(key_name, action.keys)),
            f"app.handle({action.name!r})",
            action.label,
            show=False,
            id=action.name if action.name in BY_NAME else None,
        )
        for action in map(action_named, names)
        if action.keys
    ]


def bindings_of(place: ScreenName) -> list[BindingType]:
    """The bindings of everything that can be done in a place."""
    return bindings(*(action.name for action in actions_of(place)))
