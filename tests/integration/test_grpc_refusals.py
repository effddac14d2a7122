"""What goes wrong before a federation works: one clear line, exit code 2."""

from __future__ import annotations

import contextlib
import socket

import pytest
from support.puppet import Puppet, asked, properties

import privfed.commands.client
import privfed.commands.server
import privfed.federation.participant
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Member, Roster, new_token
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.certificates import make_certificates
from privfed.runtimes.grpc_transport import Certificates, listening

CSV = "a,b,c,target\n" + "1,2,3,4\n" * 5


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Certificates of this federation, and of another."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ours", "theirs"):
        make_certificates(folder / name, ["127.0.0.1"])
    return folder


@contextlib.contextmanager
def door(certificates=None):
    """A server's door in this process, for alice with data of three features; its port."""
    roster = Roster([Member("alice", 1, new_token())])
    factory = Experiment(compose(["data=remote", "data.d=3", "data.n=1"]), roster).factory
    opened = AdmissionControl(roster, welcome=lambda node: factory.welcome(roster.nodes[node]))
    with listening(opened, "127.0.0.1:0", certificates, 1 << 20, opened.places) as port:
        yield port, roster.members["alice"].token


@pytest.fixture
def client(tmp_path, capsys, monkeypatch):
    """The client's command in this process: exit code and what it complains about."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(CSV)
    monkeypatch.delenv("PRIVFED_TOKEN", raising=False)

    def client(
        port, *more, token="", user="alice", data="mine.csv", trust=("--insecure",), patience="1"
    ):
        monkeypatch.setenv("PRIVFED_TOKEN", token)
        line = [
            "--server",
            f"127.0.0.1:{port}",
            "--user",
            user,
            "--data",
            data,
            *trust,
            "--patience",
            patience,
            *more,
        ]
        code = privfed.commands.client.main(line)
        return code, capsys.readouterr().err

    return client


def check(refusal, *words):
    """Exit code 2, one line, and it says these."""
    code, complaint = refusal
    assert code == 2 and complaint.count("\n") == 1 and complaint.startswith("privfed: "), complaint
    for word in words:
        assert word in complaint, complaint


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_nobody_there(client):
    check(client(free_port()), "cannot be reached", "Connection refused", "gave up after 1 s")


def test_certificates_that_do_not_fit(client, tls):
    with door(Certificates.read(tls / "ours")) as (port, token):
        theirs = ("--root-certificates", str(tls / "theirs/ca.crt"))
        check(client(port, token=token, trust=theirs), "certificate is not trusted")
        check(client(port, token=token), "unavailable", "--root-certificates")
        check(
            client(port, trust=("--root-certificates", "nowhere.crt")),
            "nowhere.crt",
            "cannot be read",
        )
        check(client(port, trust=("--root-certificates", "mine.csv")), "mine.csv", "not a PEM file")
    with door() as (port, token):
        check(
            client(port, token=token, trust=("--root-certificates", str(tls / "ours/ca.crt"))),
            "does not speak TLS",
        )


def test_names_and_tokens(client):
    with door() as (port, token):
        check(client(port, token="a wrong token"), "alice", "token is wrong")
        check(client(port), "alice", "token is wrong")
        check(client(port, user="mallory", token=token), "mallory", "not registered")
        check(client(port, "--token-file", "nowhere.token"), "nowhere.token", "cannot be read")


def test_another_version(client, monkeypatch):
    with door() as (port, token):
        monkeypatch.setattr(privfed.federation.participant, "__version__", "0.0.1")
        check(
            client(port, token=token),
            "the server runs privfed",
            "this client 0.0.1",
            "install the same version",
        )
        with Puppet(
            port, "alice", token
        ) as old:  # so old that it does not look at the server's version
            assert "hello" in asked(old.listen())
            old.say(properties(node="alice", proof=b"", version="0.0.1"))
            refused = asked(old.listen())["refused"]
    assert "'alice' runs privfed 0.0.1" in refused and "install the same version" in refused


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,c\n1,2,3\n", ("no column 'target'",)),
        ("a,b,target\n1,2,4\n", ("has 2 feature columns", "has 3")),
        ("a,b,c,target\n", ("has no rows",)),
        ("", ("is empty",)),
        ("user,a,b,c,target\nbob,1,2,3,4\n", ("has no rows of user 'alice'",)),
    ],
)
def test_data_that_cannot_be_used(client, tmp_path, content, words):
    (tmp_path / "bad.csv").write_text(content)
    with door() as (port, token):
        check(client(port, token=token, data="bad.csv"), "bad.csv", *words)


def test_files_that_are_not_there_or_cannot_be_written(client, tmp_path):
    with door() as (port, token):
        check(client(port, token=token, data="nowhere.csv"), "nowhere.csv", "no such file")
        check(
            client(port, "--state", "mine.csv", token=token),
            "mine.csv",
            "cannot keep this client's ledger there",
        )
        check(
            client(port, "--state", "mine.csv/deep", token=token),
            "cannot keep this client's ledger there",
        )
        check(client(port, "--test", "1", token=token), "--test=1.0")


@pytest.fixture
def server(tmp_path, capsys, monkeypatch):
    """The server's command in this process: exit code and what it complains about."""
    monkeypatch.chdir(tmp_path)

    def server(*line, trust=("--insecure",)):
        code = privfed.commands.server.main([*line, *trust])
        return code, capsys.readouterr().err

    return server


def test_a_port_in_use(server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        check(server("data.n=20", "rounds=1", "--listen", where), where, "in use")
    check(server("data.n=20", "--listen", "nowhere"), "nowhere", "HOST:PORT")
    check(
        server("data.n=20", "--listen", "192.0.2.1:8080"), "192.0.2.1:8080", "cannot listen there"
    )


def test_rosters_that_are_none(server, tmp_path):
    remote = ("data=remote", "data.d=3")
    check(server(*remote), "roster")
    check(server(*remote, "--roster", "nowhere.json"), "nowhere.json", "cannot be read")
    for content in (
        "",
        "[]",
        "{}",
        '{"nodes": [{"name": "alice"}]}',
        '{"nodes": []}',
        '{"nodes": [1]}',
        "\xff",
    ):
        (tmp_path / "bad.json").write_text(content, encoding="latin-1")
        check(server(*remote, "--roster", "bad.json"), "roster")
    Roster([Member("alice", 1, new_token())]).save(tmp_path / "roster.json")
    check(server("data.n=7", "--roster", "roster.json"), "data.n=7", "1 users are registered")
    check(
        server(
            "data.n=1", "privacy.noise=seeded", "data=remote", "data.d=3", "--roster", "roster.json"
        ),
        "privacy.noise",
    )


def test_certificates_that_are_not_there(server, tls, tmp_path):
    check(server("data.n=20", trust=("--certificates", "nowhere")), "ca.crt", "cannot be read")
    for name in ("ca.crt", "server.crt"):
        (tmp_path / name).write_bytes((tls / "ours" / name).read_bytes())
    (tmp_path / "server.key").write_bytes((tls / "theirs/server.key").read_bytes())
    check(
        server("data.n=20", "--listen", "127.0.0.1:0", trust=("--certificates", ".")),
        "certificate and key do not fit",
    )


def test_runs_that_cannot_be_resumed_or_published(server, tmp_path):
    check(server("--resume", "nowhere"), "no run in that folder")
    check(server("--publish", "nowhere"), "no complete run")
    check(server("--resume", "nowhere", "eps=2"), "keeps its settings")


@pytest.mark.slow
def test_the_commands_themselves(fleet):
    """The same as processes: nothing but the line reaches the terminal."""
    nobody = f"127.0.0.1:{free_port()}"
    for module, line in (
        (
            "client",
            ("--server", nobody, "--user", "alice", "--simulate", "--insecure", "--patience", 1),
        ),
        ("server", ("data=remote", "data.d=3", "--roster", "nowhere.json", "--insecure")),
        ("roster", ("roster.json", "alice=none")),
    ):
        process = fleet.start(module, *line)
        process.ends(2)
        assert process.complaints.count("\n") == 1 and process.said == "", process.complaints
