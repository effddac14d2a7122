"""What a node may know before it serves: nothing that follows from the rows of real users."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from privfed.federation import client_factory
from privfed.federation.client_factory import ClientFactory


@pytest.mark.parametrize(("simulated", "same"), [(False, True), (True, False)])
def test_rows_of_real_users_do_not_decide_what_is_compiled(monkeypatch, simulated, same):
    jobs = []
    monkeypatch.setattr(client_factory, "expect", jobs.append)
    for rows in (2, 5000):
        source = SimpleNamespace(n=100, m=rows, d=8, simulated=simulated)
        factory = ClientFactory({}, None, {"k": 2}, 0, rounds=5, given_source=source)
        assert factory.source is source
    assert len(jobs) == 2 and (jobs[0] == jobs[1]) is same
