"""A word that Tab offers is inert in the shell: names of tasks come from files of strangers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow
from support.marks import needs, parametrize_mostly_long
from support.pty_terminal import PtyTerminal

HOSTILE = [
    "$(touch OWNED)zz",
    "`touch OWNED`",
    "a;touch OWNED;",
    "sp ace",
    "it's",
    'a "quote"',
    "back\\slash",
    "* ? [a]",
    "!history",
    "~root",
    "#note",
    "a&b|c>d<e",
    "grün,äöü",
    "{a,b}",
]
NOT_OFFERED = ["two\nlines", "esc\x1b[2J", "tab\there", "-dash", "--force"]

#: Drives the function that the script defines as bash does at Tab. PART: what bash replaces, behind the last break.
BASH = """
eval "$(redrive completion bash)"
compopt() { echo "$@"; }
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:@'
"""
BASH_LINE = """
COMP_LINE={line} COMP_POINT=${{#COMP_LINE}} COMP_WORDS=({part}) COMP_CWORD=0
_redrive_completion redrive "" "" 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}" --
"""


def offered_by_bash(folder: Path, *lines: tuple[str, str]) -> list[list[str]]:
    """What one bash offers for each line and the part of it that is begun."""
    asked = [BASH_LINE.format(line=shlex.quote(f"redrive {line}"), part=shlex.quote(part)) for line, part in lines]
    printed = run_in(["bash", "--norc", "-c", BASH + "".join(asked)], folder)
    return [one.splitlines() for one in printed.split("--\n")[:-1]]


@pytest.fixture(scope="module")
def state_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flow = Flow("got")
    for name in [*HOSTILE, *NOT_OFFERED]:
        flow.task(lambda: None, name=name)
    state = tmp_path_factory.mktemp("got") / "got.db"
    Executor(flow=flow, state=str(state), run_id="r", max_parallel=1).run()
    return state


@pytest.fixture
def folder(tmp_path: Path, state_file: Path) -> Path:
    shutil.copy(state_file, tmp_path)
    return tmp_path


def run_in(shell: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.long
def test_bash_gets_words_that_it_reads_as_the_names_and_none_runs(folder: Path) -> None:
    (words,) = offered_by_bash(folder, ("requeue --reason x got.db ", ""))
    for word in words:
        assert run_in(["bash", "--norc", "-c", f"printf %s {word}"], folder) == shlex.split(word)[0]
    assert sorted(shlex.split(word)[0] for word in words) == sorted(HOSTILE), "what cannot be typed is not offered"
    assert not (folder / "OWNED").exists()


@pytest.mark.long
def test_a_word_goes_on_as_it_was_typed(folder: Path) -> None:
    begun = [
        ("requeue --reason x got.db", "sp"), ("logs --lines 5 got.db@r", "sp\\ a"), ("logs --state got.db", "sp\\ a")
    ]  # fmt: skip
    offered = offered_by_bash(folder, *((f"{line} {typed}", typed) for line, typed in begun))
    assert offered == [["sp\\ ace"]] * len(begun)


@pytest.mark.long
def test_the_state_file_is_completed_before_the_task(folder: Path) -> None:
    offered = offered_by_bash(folder, ("logs --lines 5 go", "go"), ("why go", "go"))
    assert offered == [["-o default"]] * 2


@pytest.fixture
def default_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to type in; the state file lies where a flow of this name has it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    (folder / "state" / "redrive").mkdir(parents=True)
    (folder / "got.db").rename(folder / "state" / "redrive" / "got.db")
    (folder / "here").mkdir()
    return folder / "here"


#: Lines with what is offered for the word that is begun, and what bash puts in: it divides at @.
LINES = {
    "inbox go": (["got", "got@"], ["got", "got@"]),
    "tasks got@": (["got@r"], ["@r"]),
    "attach got@r": (["got@r"], ["@r"]),
    "logs got it": (["it's"], ["it's"]),
    "why got@r sp": (["sp ace"], ["sp ace"]),
    "rerun got@": (["got@r"], ["@r"]),
    "requeue @": (["@r"], ["@r"]),
    "logs --state got g": (["grün,äöü"], ["grün,äöü"]),
}
#: For the other shells, which ask the same completers: a run, a task, a word that is quoted, and an option.
SOME_LINES = {"tasks got@": "got@r", "logs got it": "it's", "why got sp": "sp ace", "logs --state got g": "grün,äöü"}


@parametrize_mostly_long("lines", [("inbox go", "tasks got@", "logs got it"), tuple(LINES)], ids=["some", "all"])
def test_bash_offers_what_a_command_takes(default_place: Path, lines: tuple[str, ...]) -> None:
    typed = [(line, line.rpartition(" ")[2]) for line in lines]
    parts = [(line, word.rpartition("@")[2] or "@") for line, word in typed]  # bash has the break itself as the word
    offered = offered_by_bash(default_place, *parts)
    words = [[word for written in one for word in shlex.split(written)] for one in offered]
    assert dict(zip(lines, words, strict=True)) == {line: LINES[line][1] for line in lines}


BASH_BY_KEYS = """\
cd {folder}; PS1='> '; eval "$(redrive completion bash)"
redrive() {{ printf '%s\\n' "${{@: -1}}" >> words; }}; echo LOA''DED
"""


@pytest.mark.long
def test_bash_completes_by_keys_what_it_divides_at_the_at(default_place: Path) -> None:
    """As a person does: a word is begun, Tab, Enter; ``redrive`` shows its last word."""
    (default_place / "words").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(default_place), "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    terminal = PtyTerminal(["bash", "--norc", "--noprofile", "-i"], environ=environ, columns=250)
    lines = {"tasks got@": "got@r", "attach got@r": "got@r", "logs got@r it": "it's"}
    try:
        terminal.send(BASH_BY_KEYS.format(folder=shlex.quote(str(default_place))))
        terminal.until("LOADED")
        for count, line in enumerate(lines, 1):
            terminal.send(f"redrive {line}\t\n")
            terminal.until(partial(_has_lines, default_place / "words", count))
    finally:
        terminal.close()
    assert (default_place / "words").read_text().splitlines() == list(lines.values())


# --- The other shells ------------------------------------------------------------------------------------------------


@pytest.mark.long
@needs("fish")
@pytest.mark.parametrize("line", ["requeue --reason x --state got.db ", "logs --state got.db "])
def test_fish_offers_each_name_whole(folder: Path, line: str) -> None:
    script = f"redrive completion fish | source; complete -C {shlex.quote(f'redrive {line}')}"
    offered = run_in(["fish", "--no-config", "-c", script], folder).splitlines()
    assert sorted(word.partition("\t")[0] for word in offered) == sorted(HOSTILE)
    assert not (folder / "OWNED").exists()


@pytest.mark.long
@needs("fish")
def test_fish_completes_commands_and_topics(folder: Path) -> None:
    script = "redrive completion fish | source; complete -C 'redrive inb'; complete -C 'redrive help dead'"
    first, second = run_in(["fish", "--no-config", "-c", script], folder).splitlines()
    assert first.startswith("inbox\t") and second.startswith("deadlines\t")


@pytest.mark.long
@needs("fish")
def test_fish_offers_what_a_command_takes(default_place: Path) -> None:
    script = "redrive completion fish | source\n"
    script += "".join(f"complete -C {shlex.quote(f'redrive {line}')}; echo\n" for line in SOME_LINES)
    offered = run_in(["fish", "--no-config", "-c", script], default_place).removesuffix("\n\n").split("\n\n")
    assert dict(zip(SOME_LINES, [word.partition("\t")[0] for word in offered], strict=True)) == SOME_LINES


#: As ``ZSH``; each command shows the last word that it gets.
ZSH_OF_LINES = """\
cd {folder}; PS1='> '; autoload -Uz compinit; compinit -u; eval "$(redrive completion zsh)"
redrive() {{ print -r -- "${{@[-1]}}" >> words }}; print -r LOA''DED
"""


@pytest.mark.long
@needs("zsh")
def test_zsh_offers_what_a_command_takes(default_place: Path) -> None:
    (default_place / "words").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(default_place), "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    terminal = PtyTerminal(["zsh", "-f", "-i"], environ=environ, columns=250)
    try:
        terminal.send(ZSH_OF_LINES.format(folder=shlex.quote(str(default_place))))
        terminal.until("LOADED")
        for count, line in enumerate(SOME_LINES, 1):
            terminal.send(f"redrive {line}\t\n")
            terminal.until(partial(_has_lines, default_place / "words", count))
    finally:
        terminal.close()
    assert (default_place / "words").read_text().splitlines() == list(SOME_LINES.values())


ZSH = """\
cd {folder}; PS1='> '; autoload -Uz compinit; compinit -u; eval "$(redrive completion zsh)"
redrive() {{ [[ $1 == logs ]] && print -r -- "$4" >> words || command redrive "$@" }}; print -r LOA''DED
"""


def _has_lines(path: Path, count: int) -> bool:
    return len(path.read_text().splitlines()) == count


@pytest.mark.long
@needs("zsh")
def test_zsh_completes_a_name_to_a_word_that_it_reads_as_the_name(folder: Path) -> None:
    """By keys, as a person does: the first letters quoted, Tab, Enter; ``logs`` is replaced by what shows its word."""
    (folder / "words").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    terminal = PtyTerminal(["zsh", "-f", "-i"], environ={"PATH": path, "HOME": str(folder)}, columns=250)
    try:
        terminal.send(ZSH.format(folder=shlex.quote(str(folder))))
        terminal.until("LOADED")
        names = HOSTILE
        for count, name in enumerate(names, 1):
            typed = "".join(f"\\{letter}" for letter in name[:2])
            terminal.send(f"redrive logs --state got.db {typed}\t\n")
            terminal.until(partial(_has_lines, folder / "words", count))
    finally:
        terminal.close()
    assert (folder / "words").read_text().splitlines() == names
    assert not (folder / "OWNED").exists()
