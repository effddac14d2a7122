"""The benchmark: rows become tables, a page and a history; every section can be measured."""

from __future__ import annotations

import json
import re
import sys
import time

import bench
import bench_curves
import bench_history
import bench_initialiser
import bench_limits
import bench_numpy
import bench_page
import bench_picture
import bench_process
import bench_runtimes
import bench_whole
import numpy as np
import pytest
from bench_table import Column, Effort, Measurement, Section
from support.processes import printed_by

TOY = Section(
    "toy",
    "A toy",
    "at n={n:,}",
    "What a toy costs.",
    lambda effort: [],
    [
        Column("kind", "kind"),
        Column("ms", "s", ".1f", 1e3, "s", "lower"),
        Column("ratio", "ratio", ".2f", 1, "", "higher", True),
    ],
    ["kind"],
)
OTHER = Section(
    "other",
    "Another",
    "nothing",
    "Nothing.",
    lambda effort: [],
    [Column("x", "x", "d", better="higher")],
)
TOYS = {"toy": TOY, "other": OTHER}
ROWS = [
    {"kind": "a", "n": 5000, "s": 0.2, "ratio": 4.0},
    {"kind": "b", "n": 5000, "s": 0.1, "ratio": None},
]


def entry(date="2026-01-01T00:00:00Z", size="full", rows=ROWS, cpu="x", **sections):
    parts = {
        name: {"seconds": 1.0, "rows": part} for name, part in ({"toy": rows} | sections).items()
    }
    machine = {"cpu": cpu, "cores": 2, "load": 0.1}
    return {
        "date": date,
        "commit": "abc",
        "dirty": False,
        "size": size,
        "machine": machine,
        "versions": {},
        "sections": parts,
    }


def changed(**numbers):
    return [
        row | {key: value * row[key] for key, value in numbers.items() if row[key] is not None}
        for row in ROWS
    ]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_slopes_of_power_laws(power):
    x = [3, 10, 50, 700]
    assert bench_curves.slope(x, [0.01 * v**power for v in x]) == pytest.approx(power)


def test_rows_become_tables_and_quantities_with_stable_names():
    assert TOY.markdown(ROWS).splitlines() == [
        "| kind | ms | ratio |",
        "| --- | --: | --: |",
        "| a | 200.0 | 4.00 |",
        "| b | 100.0 | - |",
    ]
    assert TOY.table(ROWS).title == "at n=5,000" and TOY.table(ROWS).row_count == 2
    assert [each.name for each in TOY.measurements(ROWS)] == ["toy/a/s", "toy/a/ratio", "toy/b/s"]
    assert TOY.titled([{"old": 1}]) == "at n={n:,}", (
        "rows of an older benchmark are shown as well as they can be"
    )


def test_a_slow_down_is_marked_and_comes_first_whichever_way_a_quantity_counts():
    now = entry("2026-01-02T00:00:00Z", rows=changed(s=2.0, ratio=0.5))
    found, new, dates = bench_history.compare(now, [entry()], TOYS)
    assert [(change.name, change.ratio, change.slow) for change in found] == [
        ("toy/a/ratio", 0.5, True),
        ("toy/a/s", 0.5, True),
        ("toy/b/s", 0.5, True),
    ]
    assert not new and dates == {"2026-01-01T00:00:00Z"}
    assert bench_history.shown(found, dates).row_count == 3
    faster, _, _ = bench_history.compare(
        entry("2026-01-02T00:00:00Z", rows=changed(s=0.5, ratio=0.9)), [entry()], TOYS
    )
    assert [(change.ratio, change.slow) for change in faster] == [
        (pytest.approx(0.9), False),
        (2.0, False),
        (2.0, False),
    ]


def test_quantities_that_are_new_gone_or_no_numbers_are_survived():
    now = entry(
        "2026-01-02T00:00:00Z",
        rows=[{"kind": "c", "n": 1, "s": 1.0, "ratio": 1.0}, ROWS[0] | {"s": float("nan")}],
    )
    found, new, _ = bench_history.compare(now, [entry()], TOYS)
    assert [change.name for change in found] == ["toy/a/ratio"] and new == [
        "toy/c/s",
        "toy/c/ratio",
    ]
    near = [Measurement("slope", value, "", "near", True) for value in (1.0, 2.0)]
    assert bench_history.changes(near[:1], near[1:]) == [], (
        "a quantity with a best value is not faster or slower"
    )


@pytest.mark.parametrize("other", [{"cpu": "y"}, {"size": "quick"}])
def test_other_machines_and_sizes_are_not_compared(other):
    now = entry("2026-01-02T00:00:00Z")
    found, new, _ = bench_history.compare(now, [entry(**other)], TOYS)
    assert not found and len(new) == 3


def test_broken_lines_of_the_history_are_passed_over(tmp_path):
    path = tmp_path / "docs/benchmarks.jsonl"
    assert bench_history.read(path) == [] == bench_history.committed(path)
    bench_history.append(entry(), path)
    with path.open("a") as file:
        broken = [
            entry() | {"sections": {"toy": 3}},
            entry() | {"machine": None},
            entry(rows=[]),
            [],
            3,
        ]
        file.write("\n{not json\n" + "\n".join(map(json.dumps, broken)) + '\n{"date": "torn')
    bench_history.append(entry("2026-01-02T00:00:00Z", rows=[ROWS[0] | {"n": np.int64(3)}]), path)
    assert [old["date"][:10] for old in bench_history.read(path)] == ["2026-01-01", "2026-01-02"]


def test_an_entry_says_what_was_measured_on_what():
    made = bench_history.begin(Effort(quick=True))
    assert (
        made["size"] == "quick"
        and made["machine"]["cores"] >= 1
        and made["machine"]["cpu"]
        and "numpy" in made["versions"]
    )
    assert bench_history.usable(made)


def test_a_section_that_was_not_measured_keeps_its_last_rows_and_date():
    old = entry("2026-01-01T00:00:00Z", other=[{"x": 7}])
    text = bench_page.page([old, entry("2026-02-02T00:00:00Z")], TOYS)
    toy, other = text.index("## A toy"), text.index("## Another")
    assert "2026-02-02" in text[:toy] and "2026-01-01" not in text[:other]
    assert "| 7 |" in text[other:] and "Measured 2026-01-01, commit abc" in text[other:]
    quick = entry("2026-03-03T00:00:00Z", size="quick", rows=changed(s=100.0))
    assert bench_page.page([old, quick], TOYS) == bench_page.page([old], TOYS), (
        "a quick look replaces no full figures"
    )
    assert "quick: small sizes" in bench_page.page([quick], TOYS)


def test_figures_of_a_busy_machine_are_called_provisional():
    calm = entry()
    loud = calm | {"machine": calm["machine"] | {"load": 5.0}}
    assert "provisional" in bench_page.page([loud], TOYS) and "provisional" not in bench_page.page(
        [calm], TOYS
    )


def test_the_page_has_every_section_and_is_the_same_when_made_twice(tmp_path):
    path = tmp_path / "docs/benchmarks.md"
    path.parent.mkdir()
    for history in ([], [entry()]):
        texts = []
        for _ in range(2):
            bench_page.write(history, bench.SECTIONS, path)
            texts.append(path.read_text())
        assert texts[0] == texts[1]
        assert re.findall(r"^## (.*)$", texts[0], re.M) == [
            section.heading for section in bench.SECTIONS.values()
        ]
        assert texts[0].count("Not measured yet.") == len(bench.SECTIONS)
    assert (path.parent / bench_page.PICTURE).exists()


def test_bounds_are_for_quantities_that_exist_and_for_full_sizes_only():
    known = {
        column.key
        for section in bench.SECTIONS.values()
        for column in section.columns
        if column.better
    }
    for target in bench_page.TARGETS:
        section, _, key = target.name.partition("/")[0], "", target.name.rpartition("/")[2]
        (column,) = [column for column in bench.SECTIONS[section].columns if column.key == key]
        assert key in known and column.better == target.better
    rows = [{"limit": "triad", "fraction": 0.5}]
    quick = bench_page.measured_of({"limits": entry(size="quick", limits=rows)}, bench.SECTIONS)
    assert {line[3] for line in bench_page.targets(quick)} == {"not measured"}
    full = bench_page.targets(
        bench_page.measured_of({"limits": entry(limits=rows)}, bench.SECTIONS)
    )
    assert full[0][1:] == ("at least 0.33", "0.50", "yes")
    slope = next(target for target in bench_page.TARGETS if target.better == "near")
    assert slope.met(1.05) and not slope.met(1.2) and not slope.met(0.8)


def test_benchmarks_start_without_the_folder_of_scripts():
    code = "import sys, bench, bench_scaling; sys.exit(bench.main(['--list']))"
    assert len(printed_by(code).splitlines()) == len(bench.SECTIONS)


def test_sections_are_listed_and_an_unknown_one_is_refused_in_one_line(capsys):
    assert bench.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(
        bench.SECTIONS
    )
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--only", "limits", "nothing"])
    told = capsys.readouterr()
    assert stopped.value.code == 2 and not told.out
    assert (
        told.err.count("\n") == 1
        and "--only nothing: there is no such section" in told.err
        and "rivals" in told.err
    )


def test_a_run_shows_writes_and_compares_and_a_section_that_fails_stops_no_other(
    monkeypatch, tmp_path, capsys
):
    def fails(effort):
        raise RuntimeError("no luck\ntoday")

    values = iter([4.0, 4.0, 1.0])
    toy = Section(**vars(TOY) | {"work": lambda effort: [ROWS[0] | {"ratio": next(values)}]})
    path = tmp_path / "docs/benchmarks.jsonl"
    monkeypatch.setattr(
        bench,
        "SECTIONS",
        {"bad": Section(**vars(OTHER) | {"name": "bad", "work": fails}), "toy": toy},
    )
    monkeypatch.setattr(bench_history, "HISTORY", path)
    monkeypatch.setattr(bench_page, "PAGE", path.with_suffix(".md"))
    assert bench.main(["--write"]) == 1
    told = capsys.readouterr()
    assert (
        "bad failed: RuntimeError: no luck today" in told.out and told.err == "bench: failed: bad\n"
    )
    assert "2 quantities have no committed figure" in told.out and "[2/2] toy took" in told.out
    assert bench.main(["--only", "toy"]) == 0
    assert "0 of 2 quantities are below 0.8" in capsys.readouterr().out
    assert bench.main(["--only", "toy"]) == 0
    told = capsys.readouterr().out
    assert "1 of 2 quantities are below 0.8" in told and "SLOWER" in told and "noisy" in told
    assert (
        len(path.read_text().splitlines()) == 1
        and "## A toy" in path.with_suffix(".md").read_text()
    )


def shown(section, rows):
    """All rows can be shown, and every quantity is a positive number."""
    json.dumps(rows, allow_nan=False)
    assert section.table(rows).row_count == len(rows)
    measured = section.measurements(rows)
    assert measured and all(each.value > 0 for each in measured if each.better != "near")
    assert len({each.name for each in measured}) == len(measured)
    return rows


def test_curves_can_be_measured_and_drawn(monkeypatch, tmp_path):
    sizes = {"data.n": (40, 80), "data.d": (20, 30), "data.m": (12, 20)}
    others = ("n=50", "d=20", "m=12", "k=2")
    small = [
        bench_curves.Curve(c.over, c.key, (), sizes.get(c.key, (2, 4)), others)
        for c in bench_curves.CURVES
    ]
    monkeypatch.setattr(bench_curves, "CURVES", small)
    rows = shown(bench_curves.SECTION, bench_curves.curves(Effort(quick=True)))
    assert [row["over"] for row in rows] == ["n", "d", "k", "m", "rounds"]
    limits = [{"limit": "triad", "unit": "bytes", "available": 2e10, "fraction": 0.4, "n": 100}]
    rivals = [
        {
            "rival": "loop",
            "users": 10,
            "users_per_s": 9.0,
            "n": 100,
            "base": 50,
            "ours_n": 1e6,
            "ours_base": 1e6,
        }
    ]
    bench_picture.draw(
        {"curves": rows, "limits": limits, "rivals": rivals}, tmp_path / "picture.png"
    )
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_initialiser_is_measured_against_the_product_it_cannot_avoid():
    (row,) = shown(bench_initialiser.SECTION, bench_initialiser.initialiser(100, 20, 1))
    assert (
        row["ratio"] == pytest.approx(row["seconds"] / row["gemm_s"]) and row["dtype"] == "float64"
    )


def test_a_product_is_the_same_however_threads_share_it(monkeypatch):
    A, B = (np.random.default_rng(i).standard_normal((37, 5)) for i in range(2))
    found = []
    monkeypatch.setattr(bench_limits, "best", lambda work, tries: found.append(work()) or 1.0)
    assert bench_limits.product_seconds(A, B, 3) == 1.0
    for product in found:
        np.testing.assert_allclose(product, A.T @ B, rtol=1e-12)
    assert len(found) == 2


def test_rounds_growth_and_nodes_can_be_measured():
    for row in shown(bench_numpy.NUMPY, bench_numpy.against_numpy(1, 200)):
        assert row["ratio"] == pytest.approx(row["users_per_s"] / row["plain_users_per_s"])
    assert [row["n"] for row in shown(bench_numpy.GROWTH, bench_numpy.growth(1, (100, 200)))] == [
        100,
        200,
    ]
    assert [row["nodes"] for row in shown(bench_numpy.NODES, bench_numpy.one_user_a_node(1, 20))][
        1
    ] == 20


@pytest.mark.slow
def test_messages_over_grpc_can_be_measured():
    assert len(shown(bench_runtimes.GRPC, bench_runtimes.over_the_network(1, 3))) == 2


@pytest.mark.slow
def test_whole_commands_can_be_measured():
    row = bench_whole.whole("small", "data.n=200", "rounds=2")
    shown(bench_whole.SCALE, [row])
    parts = sum(row[key] for key in ("setup_s", "init_s", "rounds_s", "heads_s", "rest_s"))
    assert (
        row["n"] == 200
        and parts == pytest.approx(row["wall_s"])
        and row["peak_mb"] > 50
        and row["cpu_s"] > 0.1
    )
    bad = bench_whole.whole("bad", "data.n=-1")
    assert (
        "failed: privfed: data.n=-1" in bad["note"] and bench_whole.SCALE.measurements([bad]) == []
    )


@pytest.mark.slow
def test_a_sweep_can_be_measured():
    rows = shown(bench_whole.SWEEP, bench_whole.sweep(["seed=0,1", "data.n=200", "rounds=2"], 2))
    *phases, whole = rows
    assert [row["phase"] for row in rows] == ["start-up", "runs", "summary", "all"]
    assert sum(row["seconds"] for row in phases) == pytest.approx(whole["seconds"])
    assert sum(row["cpu_s"] for row in phases) == pytest.approx(whole["cpu_s"])


def test_the_cost_of_a_process_has_its_children_and_its_marks():
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    start = time.perf_counter()
    cost = bench_process.watched(
        [sys.executable, "-c", code], {"soon": lambda: time.perf_counter() - start > 0.2}
    )
    assert cost.code == 0 and cost.cpu > 0.4 and cost.wall > 0.4 and cost.peak_mb > 1
    assert 0.2 <= cost.marks["soon"][0] <= cost.wall and cost.marks["soon"][1] <= cost.cpu + 0.05
    failed = bench_process.watched([sys.executable, "-c", "raise SystemExit('first\\nlast')"])
    assert failed.code == 1 and failed.complaint == "last"
