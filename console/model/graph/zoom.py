"""The zoom levels of the graph screen, what each shows, and the order of tasks."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from ....engine.core.dag import Dag
from .components import is_chain

GRAPH_MAX = 60  # tasks that are shown individually at first
GROUPS_MAX = 120  # groups that are shown at first
MATRIX_MAX = 2_000


class Zoom(IntEnum):
    """The zoom levels, from far to near."""

    BANDS = 0
    GROUPS = 1
    MATRIX = 2
    GRAPH = 3


class GraphForm(IntEnum):
    """The form of the nearest zoom level."""

    RAILS = 0
    DRAWING = 1


class Step(StrEnum):
    """What the screen shows: a zoom level, the nearest one in either form, or the tasks that a filter found."""

    BANDS = "bands"
    GROUPS = "groups"
    SIGNS = "signs"
    ROWS = "rows"
    DRAWING = "drawing"
    FOUND = "found"


FAR_STEPS = {Zoom.BANDS: Step.BANDS, Zoom.GROUPS: Step.GROUPS, Zoom.MATRIX: Step.SIGNS}


class GraphOrder(StrEnum):
    """The order of tasks, as far as the edges allow."""

    FLOW = "as the flow goes"
    PROBLEMS = "problems first"  # fixed when chosen, so that rows do not move under the cursor


def first_zoom(dag: Dag, group_rows: int) -> Zoom:
    """Return the initial zoom: the graph if small or a chain, groups if few, the matrix or bands otherwise."""
    if len(dag) <= GRAPH_MAX or is_chain(dag):
        return Zoom.GRAPH
    if group_rows <= GROUPS_MAX:
        return Zoom.GROUPS
    return Zoom.MATRIX if len(dag) <= MATRIX_MAX else Zoom.BANDS
