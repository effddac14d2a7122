"""What the operator of a server sees: health, metrics, a page, the log, and `privfed status`."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest
from support.processes import eventually, rows_of

pytestmark = pytest.mark.slow
SMALL = ("data.n=20", "data.d=6", "data.m=6", "runtime.nodes=2", "eps=4", "rounds=20000")


def look(port, path):
    """Status code and content of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_operator_watches_a_run(fleet):
    options = ("out=run", "--insecure", "--status", "127.0.0.1:0", "--json-log")
    server, port = fleet.server(*SMALL, *options)
    status = int(server.said.partition("status on http://127.0.0.1:")[2].partition("/")[0])
    assert look(status, "/healthz") == (200, "ok\n")
    assert look(status, "/readyz")[0] == 503 and look(status, "/else")[0] == 404
    fleet.client(port, "0")
    eventually(lambda: look(status, "/readyz")[0] == 200, "half of the users")
    page = look(status, "/")[1]
    assert "<li>1</li>" in page and "10 of 20" in page and "Missing nodes (1)" in page
    fleet.client(port, "1")
    fleet.start(
        *("client", "--server", f"127.0.0.1:{port}", "--user", "mallory"),
        *("--simulate", "--insecure"),
    ).ends(2)
    folder = fleet.folder / "run"
    eventually(lambda: len(rows_of(folder)) >= 3, "steps")
    code, text = look(status, "/metrics")
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert code == 200 and float(figures["privfed_users_present"]) == 20
    assert float(figures["privfed_steps_done"]) >= 3
    assert 0 < float(figures["privfed_epsilon_spent"]) <= 4
    assert figures['privfed_refused_connections_total{reason="not registered"}'] == "1"
    assert "Missing nodes" not in look(status, "/")[1]
    seen = fleet.start("status", "run", "--json")
    seen.ends(0)
    found = json.loads(seen.said)
    assert found["steps"] >= 3 and found["complete"] is False and found["epsilon_spent"] > 0
    server.send(signal.SIGTERM)
    server.ends(0)
    logged = [json.loads(line) for line in server.complaints.splitlines() if line[0] == "{"]
    assert any("has joined" in line["message"] for line in logged)
    assert "no run in that folder" in fleet.start("status", "nowhere").ends(2)
