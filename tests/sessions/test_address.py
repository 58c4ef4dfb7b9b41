"""What an address may say, and what never reaches a command line."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.cli.options import NamedFile, of_file
from redrive.console.sessions.address import SshAddress, SshOptions, parse
from redrive.console.text.text import is_remote
from redrive.engine.errors import AddressError
from support.marks import for_each


@for_each(
    "text, address",
    [
        ("ssh://db1/var/lib/redrive/night.db", SshAddress("db1", "/var/lib/redrive/night.db")),
        ("ssh://ana@db1.example.org:2222/x.db", SshAddress("db1.example.org", "/x.db", "ana", 2222)),
        ("ssh://db1/~/x.db", SshAddress("db1", "~/x.db")),
        ("ssh://db1/~ana/x.db", SshAddress("db1", "~ana/x.db")),
        ("ssh://db1", SshAddress("db1")),
        ("ssh://db1/", SshAddress("db1")),
        ("ssh://[fe80::1%eth0]:22/x.db", SshAddress("fe80::1%eth0", "/x.db", None, 22)),
        ("ssh://[::1%25lo]/x.db", SshAddress("::1%lo", "/x.db")),
        ("ssh://ana@corp.example@db1/x.db", SshAddress("db1", "/x.db", "ana@corp.example")),
        ("ssh://db1/a%20b%3Fc.db", SshAddress("db1", "/a b?c.db")),
        ("ssh://db1/a?b#c.db", SshAddress("db1", "/a?b#c.db")),
        ("ssh://db1/100%.db", SshAddress("db1", "/100%.db")),
        ("ssh://my_host-1/x@y:z.db", SshAddress("my_host-1", "/x@y:z.db")),
    ],
)
def test_an_address_is_read_part_by_part(text: str, address: SshAddress) -> None:
    assert parse(text) == address


@for_each(
    "text",
    [
        "ssh:///x.db",
        "ssh://@/x.db",
        "ssh://-oProxyCommand=touch X/x.db",
        "ssh://-oProxyCommand=id/x.db",
        "ssh://ana@-oProxyCommand=id/x.db",
        "ssh://-oProxyCommand=id@db1/x.db",
        "ssh://db1;id/x.db",
        "ssh://db1 x/x.db",
        "ssh://db1\n/x.db",
        "ssh://$(id)/x.db",
        "ssh://`id`/x.db",
        "ssh://db1'/x.db",
        'ssh://db1"/x.db',
        "ssh://dé/x.db",
        "ssh://db1|id/x.db",
        "ssh://ana;id@db1/x.db",
        "ssh://ana\\x@db1/x.db",
        "ssh://ana%h@db1/x.db",
        "ssh://db1\x1b[2J/x.db",
        "ssh://[::1/x.db",
        "ssh://[-oProxyCommand=id]/x.db",
        "ssh://fe80::1/x.db",
        "ssh://db1:0/x.db",
        "ssh://db1:65536/x.db",
        "ssh://db1:22x/x.db",
        "ssh://db1:٢٢/x.db",
        "ssh://db1:/x.db",
        "ssh://db1/a%00b",
        "http://db1/x.db",
    ],
)
def test_what_could_be_an_option_or_a_shell_word_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse(text)


def test_only_ssh_addresses_are_taken_for_such() -> None:
    assert is_remote("ssh://db1/x.db")
    assert not is_remote("/var/ssh://x.db")
    assert not is_remote("ana@db1:/x.db")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_path_survives_being_written_as_an_address(path: str) -> None:
    address = SshAddress("db1", "/srv/" + path, "ana", 22)
    assert parse(str(address)) == address
    assert str(address).isascii() and str(address).isprintable()


@given(st.text())
def test_nothing_but_an_address_or_a_refusal_comes_of_any_text(text: str) -> None:
    try:
        address = parse("ssh://" + text)
    except AddressError:
        return
    assert not address.destination.startswith("-")
    assert address.destination.isascii() and address.destination.isprintable() and " " not in address.destination


@pytest.mark.parametrize("option", ["ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"])
def test_a_remote_host_gets_neither_keys_nor_a_screen(option: str) -> None:
    argv = SshOptions().argv(parse("ssh://db1"), "true")
    assert argv[argv.index(option) - 1] == "-o"


@pytest.mark.parametrize("options", [SshOptions(), SshOptions("/opt/py 3", ("IdentityFile=/keys/a b", "-4"), "etl")])
def test_a_printed_command_reaches_the_host_with_the_options_that_were_given(options: SshOptions) -> None:
    found: list[NamedFile] = []

    @click.command()
    @of_file
    def command(file: NamedFile) -> None:
        found.append(file)

    shared = options.with_options("ControlPath=/run/ssh")  # of a connection that ends with the console
    command.main(["ssh://db1", *shared.arguments], standalone_mode=False)
    assert found[0].ssh == options
    argv = shared.argv(parse("ssh://db1"), "true")
    assert argv.index("ControlPath=/run/ssh") > max((argv.index(one) for one in options.options), default=0)
