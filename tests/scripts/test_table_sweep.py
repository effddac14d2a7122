"""The sweep over tables: what it runs is kept, continued and told in words."""

from __future__ import annotations

import json

import table_sweep
from panels.synthetic import made_up


def test_a_made_up_table_is_judged_once_and_told(tmp_path, capsys):
    name = made_up(27).name
    line = ["--made-up", "28", "--only", name, "--work", str(tmp_path), "--splits", "1",
            "--seeds", "1", "--eps", "4", "inf"]  # fmt: skip
    table_sweep.main(line)
    told = capsys.readouterr().out
    assert told.count("personal models") == 2 and "beyond what is allowed" in told
    kept = (tmp_path / "runs.jsonl").read_text()
    rows = [json.loads(row) for row in kept.splitlines()]
    assert {"personal", "alone", "offset", "statistics"} <= set(rows[0]["errors"])
    assert {"mixed", "mixed diagonal"} <= set(rows[1]["errors"])
    table_sweep.main(line)
    assert (tmp_path / "runs.jsonl").read_text() == kept, "nothing is run twice"
    assert capsys.readouterr().out == told
