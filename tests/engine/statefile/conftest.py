"""The fixtures of the store: a state file on disk with one small run in it."""

from ..store.conftest import make_state_file, state_file

__all__ = ["make_state_file", "state_file"]
