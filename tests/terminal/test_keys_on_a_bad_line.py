"""What nobody pressed does nothing: sequences in pieces, pastes, noise, keys faster than a hand."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest
from support.marks import parametrize_mostly_long
from support.pty_terminal import in_time

SEQUENCES = (
    b"\x1b[A",
    b"\x1b[D",
    b"\x1b[1;5C",
    b"\x1b[Z",
    b"\x1b[3~",
    b"\x1bOR",
    b"\x1bOS",
    b"\x1b[<0;10;5M",
    b"\x1b[<0;10;5m",
    b"\x1b[I",
    b"\x1b[12;40R",
    b"\x1b[?2026;2$y",
    b"\x1b[?62;22c",
    b"\x1b[97;5u",
)


def test_a_key_that_a_hand_presses_acts(demo) -> None:
    app = demo()
    app.terminal.send("r")
    app.terminal.until(lambda: app.acts() == ["requeue 0"])


@pytest.mark.long
@pytest.mark.parametrize("pause", [0.05, 0.25])
def test_sequences_in_pieces_do_nothing(demo, pause: float) -> None:
    """Every sequence, cut at a random byte; with the views and the dialogs that stray keys could open in between."""
    app = demo()
    dice = random.Random(pause)

    def opens_nothing(sequence: bytes, cut: int) -> bool:
        for piece in (sequence[:cut], sequence[cut:]):
            app.terminal.send(piece)
            app.terminal.read_for(pause)
        if "Cancel" not in app.terminal.text:
            return True
        app.terminal.send("\x1b")  # what comes too late for its escape may ask, and nothing more
        app.terminal.until(lambda: "Cancel" not in app.terminal.text)
        return False

    for sequence in SEQUENCES:
        in_time(partial(opens_nothing, sequence, dice.randrange(1, len(sequence))))
    app.settle()
    assert app.acts() == []


@pytest.mark.long
def test_arrows_in_pieces_still_move(demo) -> None:
    """On a line over which an escape may wait for its rest; where the machine stops in between, it waits in vain."""
    app = demo(environ={"SSH_CONNECTION": "x"})

    def moves() -> bool:
        before = app.terminal.text, app.cursor_row()
        for piece in (b"\x1b", b"[B"):
            app.terminal.send(piece)
            app.terminal.read_for(0.1)
        app.settle()
        assert app.terminal.text == before[0]
        return app.cursor_row() == before[1] + 1

    for _ in range(3):
        in_time(moves)
    assert app.acts() == []


@parametrize_mostly_long("bracketed", [True, False])
def test_a_paste_does_nothing(demo, bracketed: bool) -> None:
    app = demo()
    text = b"requeue skip xszbp\r\n" * 500
    app.terminal.send(b"\x1b[200~" + text + b"\x1b[201~" if bracketed else text)
    app.settle()
    assert app.acts() == []
    assert "Cancel" not in app.terminal.text
    while not app.acts():  # right behind a paste a key may be the end of it
        app.terminal.send("r")
        app.terminal.read_for(0.5)
    assert {act.split()[0] for act in app.acts()} == {"requeue"}


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("seed", range(7, 11))
def test_binary_noise_does_nothing(demo, seed: int) -> None:
    """Among the noise are keys that open a prompt or a dialog and keys that close it: what is meant for one of them
    must not act when it is gone."""
    app = demo()
    dice = random.Random(seed)
    for _ in range(20):
        app.terminal.send(dice.randbytes(500))
        app.terminal.read_for(0.02)
    app.terminal.read_for(0.6)
    app.settle()
    assert app.acts() == []


@pytest.mark.long
def test_a_refused_key_says_so(demo) -> None:
    app = demo()

    def is_read() -> bool:
        """Whether the sentence was seen in the seconds for which it stands there."""
        app.terminal.send("jjjr")
        app.settle()
        assert app.acts() == []
        return "faster than a hand" in app.terminal.text

    in_time(is_read)


@pytest.mark.long
def test_right_after_escape_nothing_acts_and_a_moment_later_it_does(demo) -> None:
    app = demo()

    def is_refused() -> bool:
        before = app.acts()
        app.terminal.send("\x1b")
        app.terminal.read_for(0.05)
        app.terminal.send("r")
        app.terminal.read_for(0.1)
        app.settle()
        return "right after Esc" in app.terminal.text and app.acts() == before

    in_time(is_refused)
    before = app.acts()
    app.terminal.read_for(0.3)
    app.terminal.send("r")
    app.terminal.until(lambda: app.acts() == [*before, "requeue 0"])


@pytest.mark.long
def test_a_question_takes_no_answer_that_comes_sooner_than_it_can_be_read(demo) -> None:
    app = demo()

    def is_refused() -> bool:
        before = app.acts()
        app.terminal.send("x")
        time.sleep(0.06)  # the question is there, and cannot have been read
        app.terminal.send("a")
        app.terminal.until(lambda: "Cancel" in app.terminal.text or app.acts() != before)
        app.terminal.read_for(0.4)
        app.settle()
        return "Cancel" in app.terminal.text

    in_time(is_refused)
    before = app.acts()
    app.terminal.send("a")
    app.terminal.until(lambda: app.acts() == [*before, "stop_task 0"])


@pytest.mark.long
def test_a_paste_into_a_reason_is_text_and_enters_nothing(demo) -> None:
    app = demo()
    app.terminal.send("s")
    app.terminal.until("Reason:")
    app.terminal.read_for(0.5)
    app.terminal.send(b"\x1b[200~fixed upstream\r\r\n\x1b[201~")
    app.terminal.until("Reason: fixed upstream")
    app.terminal.read_for(0.3)
    assert app.acts() == []
    app.terminal.send("\r")
    app.terminal.until(lambda: app.acts() == ["skip fixed upstream 0"])


@pytest.mark.long
def test_an_unbracketed_paste_into_a_reason_does_not_enter_it(demo) -> None:
    app = demo()
    app.terminal.send("s")
    app.terminal.until("Reason:")
    app.terminal.read_for(0.5)
    app.terminal.send(b"fixed\r")
    app.terminal.until("Reason: fixed")
    app.terminal.read_for(0.5)
    assert app.acts() == []


@pytest.mark.long
def test_what_is_typed_behind_a_slash_is_text_however_fast_it_comes(demo) -> None:
    app = demo()
    app.terminal.send("/sx")
    app.terminal.until(" /sx")
    app.terminal.read_for(0.3)
    assert app.acts() == []
    assert "Cancel" not in app.terminal.text


@pytest.mark.long
def test_keys_in_a_filter_are_text(demo) -> None:
    app = demo()
    app.terminal.send("/")
    app.terminal.read_for(0.2)
    for key in "rszxp":
        app.terminal.send(key)
        app.terminal.read_for(0.05)
    app.terminal.until("/rszxp")
    app.terminal.read_for(0.2)
    assert app.acts() == []
