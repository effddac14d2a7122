"""The SuperNode command: what is checked before it starts, and how its end is explained."""

from __future__ import annotations

import shlex

import pytest

from privfed.commands import supernode
from privfed.federation.roster import new_token
from privfed.runtimes.certificates import make_certificates, make_node_key
from privfed.runtimes.ports import free_port
from privfed.runtimes.supernode_process import why_supernode_ended


def node_command(folder, *more, key=None):
    return [
        *("--superlink", f"127.0.0.1:{free_port()}", "--root-certificates", str(folder / "ca.crt")),
        *(
            "--key",
            str(key or folder / "a.key"),
            "--user",
            "a",
            "--token-file",
            str(folder / "a.token"),
        ),
        *("--patience", "0.5", *more),
    ]


@pytest.fixture
def keys(tmp_path):
    make_certificates(tmp_path)
    make_node_key(tmp_path / "a.key")
    (tmp_path / "a.token").write_text(new_token())
    return tmp_path


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--simulate",), "cannot be reached"),
        (("--data", "/nowhere.csv"), "no such file"),
        (("--data", __file__, "--test", "2"), "test=2"),
    ],
)
def test_a_supernode_that_cannot_start_says_why_in_one_line(keys, capsys, more, words):
    assert supernode.main(node_command(keys, *more)) == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1


def test_a_supernode_needs_a_key_that_flower_takes(keys, capsys):
    assert supernode.main(node_command(keys, "--simulate", key=keys / "server.key")) == 2
    assert "ssh-keygen -t ecdsa" in capsys.readouterr().err


def test_a_supernode_shows_flowers_own_command(keys, capsys):
    assert (
        supernode.main(node_command(keys, "--simulate", "--show", "--state", str(keys / "heads")))
        == 0
    )
    words = shlex.split(capsys.readouterr().out)
    assert words[0] == "flower-supernode" and "--auth-supernode-private-key" in words
    assert 'node="a"' in words[-1] and "heads" in words[-1]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "[code: 2004] Failed to activate SuperNode.",
            "does not take this node's key: it is not registered",
        ),
        ("Exit code 606: Flower 1.40 is not compatible with 1.41", "Flower 1.40 is not compatible"),
    ],
)
def test_the_end_of_a_supernode_is_explained(said, words):
    output = (
        "\x1b[91mERROR\x1b[0m: Exit Code: 305\n"
        f"Failed to initialize the connection to the SuperLink.\n{said}\nHelp.\n"
    )
    error = why_supernode_ended(output)
    assert words in str(error) and "\n" not in str(error) and error.exit_code == 2
