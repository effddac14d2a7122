"""Who may take part: numbering, files that only their owner reads, and rosters that are none."""

from __future__ import annotations

import json

import pytest

from privfed.commands.roster import main
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError


def members(**users):
    return Roster(Member(name, count, new_token()) for name, count in users.items())


def test_users_are_numbered_in_the_order_of_the_members():
    roster = members(alice=1, clinic=100, bob=2)
    assert roster.nodes == {"alice": range(1), "clinic": range(1, 101), "bob": range(101, 103)}
    assert roster.users == 103 and len(roster) == 3 and not roster.simulated


def test_simulated_users_are_spread_evenly_with_a_secret_each():
    roster = Roster.of_simulated(10, 3)
    assert list(roster.nodes.values()) == [range(3), range(3, 6), range(6, 10)] and roster.simulated
    assert len({member.token for member in roster}) == 3


def test_it_survives_its_file_which_nobody_else_can_read(tmp_path):
    roster = members(alice=1, bob=2)
    roster.save(tmp_path / "roster.json")
    roster.write_tokens(tmp_path / "tokens")
    assert list(Roster.read(tmp_path / "roster.json")) == list(roster)
    files = [tmp_path / "roster.json", *(tmp_path / "tokens").iterdir()]
    assert len(files) == 3 and {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "tokens/bob.token").read_text().strip() == roster.members["bob"].token


@pytest.mark.parametrize(
    "name", ["", ".", "../alice", "a/b", "-x", "a b", "a\n", "x" * 101, None, 7, "ä"]
)
def test_names_that_could_be_paths_or_options_are_refused(name):
    with pytest.raises(ConfigError, match="roster"):
        Member(name, 1, new_token())


@pytest.mark.parametrize(
    "changed",
    [
        {"users": 0},
        {"users": True},
        {"users": 1.5},
        {"users": "1"},
        {"token": "short"},
        {"token": 1},
    ],
)
def test_impossible_members_are_refused(changed):
    with pytest.raises(ConfigError, match="alice"):
        Member(**({"name": "alice", "users": 1, "token": new_token()} | changed))


def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="same name"):
        Roster([Member("alice", 1, new_token()), Member("alice", 2, new_token())])
    with pytest.raises(ConfigError, match="nobody"):
        Roster([])


def test_the_command_adds_nodes_and_keeps_the_tokens_of_those_who_are_there(tmp_path, capsys):
    file = tmp_path / "roster.json"
    assert main([str(file), "alice", "clinic=100", "--simulated", "extra=50"]) == 0
    before = Roster.read(file)
    assert main([str(file), "bob"]) == 0
    after = Roster.read(file)
    assert list(after)[:3] == list(before) and after.nodes["bob"] == range(151, 152)
    assert [member.simulated for member in after] == [False, False, True, False]
    said = capsys.readouterr().out
    assert "4 node(s), 152 user(s)" in said and not any(member.token in said for member in after)
    for wrong in ("bob", "bob=x", "bob=-1", "carol=0", "../carol"):
        assert main([str(file), wrong]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert list(Roster.read(file)) == list(after)


def test_a_file_with_something_unknown_in_it_is_refused(tmp_path):
    file = tmp_path / "roster.json"
    members(alice=1).save(file)
    content = json.loads(file.read_text())
    content["nodes"][0]["rank"] = 1
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="not a roster"):
        Roster.read(file)
