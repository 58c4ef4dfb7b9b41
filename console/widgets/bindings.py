"""Textual's bindings, made from the table of actions; ids are names of actions, so ``App.set_keymap`` can move them."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from ..actions import BY_NAME, Place, actions_of
from ..keys import DEFAULT_KEYS

#: Moves that every list understands.
PAGING = ("down", "up", "top", "bottom", "page_down", "page_up", "half_page_down", "half_page_up")


def bindings(*names: str) -> list[BindingType]:
    """For ``BINDINGS``: the keys of an action call ``action_<name>`` of the screen or widget. Those without are left
    out."""
    return [
        Binding(",".join(DEFAULT_KEYS.of(name)), name, BY_NAME[name].label, show=False, id=name)
        for name in names
        if DEFAULT_KEYS.of(name)
    ]


def bindings_of(place: Place, without: tuple[str, ...] = ()) -> list[BindingType]:
    """The bindings of everything that can be done in a place."""
    return bindings(*(action.name for action in actions_of(place) if action.name not in without))
