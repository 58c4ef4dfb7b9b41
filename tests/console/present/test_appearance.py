"""Signs, words and pieces: every state is told apart without colour, every sign takes one cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.present.states import SEVERITY
from redrive.console.text.glyphs import ASCII, UTF8, Glyph, Glyphs, glyphs_for
from redrive.console.text.pieces import Piece, Role, crop, fit, join, plain, two_sided, width
from redrive.console.text.text import cells, sanitize
from redrive.engine.core.views import COUNTED_STYLES, CUT_OFF, RUN_STYLES, STATE_STYLES, OperatorPrompt, Sign
from redrive.engine.domain.states import NEEDS_HUMAN, RunState, TaskState
from support.marks import for_each

SETS = {"UTF-8": UTF8, "ASCII": ASCII}

lines = st.lists(
    st.builds(Piece, st.text(st.characters(codec="utf-8"), max_size=8).map(sanitize), st.sampled_from(list(Role))),
    max_size=6,
)


def signs_of(glyphs):
    for name in Glyphs.__struct_fields__:
        value = getattr(glyphs, name)
        for character in value if isinstance(value, tuple) else (value,):
            yield name, character


@pytest.mark.parametrize("glyphs", SETS.values(), ids=SETS)
def test_every_sign_takes_one_cell(glyphs):
    assert [(name, sign) for name, sign in signs_of(glyphs) if len(sign) != 1 or cells(sign) != 1] == []


@for_each("glyph", [*Glyph, *Sign])
def test_every_glyph_that_a_table_names_is_a_sign(glyph):
    assert len(UTF8.of(glyph)) == len(ASCII.of(glyph)) == 1


def test_the_ascii_set_is_ascii():
    assert all(character.isascii() and character.isprintable() for _, character in signs_of(ASCII))


@pytest.mark.parametrize("glyphs", SETS.values(), ids=SETS)
def test_no_two_states_share_a_sign_or_a_word(glyphs):
    styles = [*STATE_STYLES.values(), CUT_OFF]
    assert len({glyphs.of(style.sign) for style in styles}) == len({style.word for style in styles}) == len(styles)
    assert len({RUN_STYLES[state].word for state in RunState}) == len(RunState)


def test_words_of_states_keep_their_column():
    assert max(len(style.word) for style in STATE_STYLES.values()) <= 8


def test_the_one_accent_belongs_to_what_needs_a_decision():
    assert {state for state in TaskState if STATE_STYLES[state].role == Role.HUMAN} == {TaskState.DEAD_LETTER}
    assert set(SEVERITY) == {*TaskState, OperatorPrompt.APPROVAL}
    assert set(SEVERITY[:3]) == {*NEEDS_HUMAN, OperatorPrompt.APPROVAL}
    assert COUNTED_STYLES[OperatorPrompt.APPROVAL].role == Role.HUMAN


@pytest.mark.parametrize("glyphs", SETS.values(), ids=SETS)
def test_states_lines_and_cuts_of_a_graph_do_not_look_alike(glyphs):
    lines = {sign for sign in glyphs.lines if sign != " "}
    cuts = {glyphs.more, glyphs.elided, glyphs.cut_left, glyphs.cut_right}
    states = {glyphs.done, glyphs.running, glyphs.retrying, glyphs.sensing, glyphs.ready, glyphs.failed, glyphs.dead}
    assert not lines & cuts
    assert not lines & states
    assert not cuts & states


@pytest.mark.parametrize("glyphs", SETS.values(), ids=SETS)
def test_a_crossing_and_a_joint_are_distinguished_in_both_sets(glyphs):
    """Reading a drawing depends on it: a bare vertical line is passed underneath, a joint is not."""
    crossing = glyphs.lines[3]
    assert all(glyphs.lines[arms] != crossing for arms in range(7, 16) if arms != 12)


@for_each(
    "encoding, expected",
    [
        ("utf-8", UTF8),
        ("UTF8", UTF8),
        ("utf_8", UTF8),
        ("ascii", ASCII),
        ("iso8859-1", ASCII),
        (None, ASCII),
        ("", ASCII),
    ],
)
def test_only_a_terminal_that_says_utf_gets_more_than_ascii(encoding, expected):
    assert glyphs_for(encoding) is expected


# --- Pieces --------------------------------------------------------------------------------------------------------


@given(lines, st.integers(0, 30), st.integers(0, 30))
def test_a_crop_has_exactly_the_cells_that_were_asked_for(line, low, high):
    start, end = min(low, high), max(low, high)
    assert width(crop(line, start, end)) == max(min(end, width(line)) - start, 0)


@given(lines, st.integers(0, 40))
def test_a_fitted_line_has_exactly_its_size(line, size):
    assert width(fit(line, size)) == size


@given(lines, lines, st.integers(0, 60))
def test_two_sides_never_take_more_than_there_is(left, right, size):
    assert width(two_sided(left, right, size)) <= size


def test_what_is_cut_off_is_marked_and_the_right_side_gives_way_first():
    left, right = [Piece("a long name of a run")], [Piece("on a host")]
    assert plain(fit(left, 8)) == "a long …"
    assert plain(two_sided(left, right, 30)) == "a long name of a run on a host"
    assert plain(two_sided(left, right, 22)) == "a long name of a run  "


def test_empty_parts_leave_no_gap():
    assert plain(join([[Piece("a")], [], [Piece("b")]])) == "a  b"
