"""Pages made from the files of finished runs."""

from __future__ import annotations

import json
import re
import shutil
from statistics import fmean

import pytest

from privfed.commands import report
from privfed.commands.run import main
from privfed.report.charts import Series, line_chart
from privfed.report.comparison_page import budget_shares
from privfed.report.past_runs import find, settings_of

SMALL = ("data.n=200", "data.d=8", "data.m=6", "rounds=2", "--quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs of two algorithms, three budgets and two seeds, and some that are different."""
    home = tmp_path_factory.mktemp("runs")
    runs = {
        "fedrep/1-0": ("eps=1",),
        "fedrep/1-1": ("eps=1", "seed=1", "runtime.nodes=1"),
        "fedrep/8-0": ("eps=8",),
        "fedrep/8-1": ("eps=8", "seed=1"),
        "inf": ("eps=inf",),
        "altmin": ("algo=altmin", "eps=1"),
        "alone": ("algo=standalone",),
        "margin": ("algo=jlmargin", "data=margin", "eps=2"),
        "margin-1": ("algo=jlmargin", "data=margin", "eps=2", "seed=1"),
        "discrete/0": ("privacy.noise=discrete",),
        "discrete/1": ("privacy.noise=discrete", "seed=1"),
    }
    for name, line in runs.items():
        assert main([*SMALL, *line, f"out={home / name}"]) == 0, name
    return home


@pytest.fixture
def page(home, tmp_path):
    """The page of some of the runs, as text."""

    def page(*names):
        out = tmp_path / "page.html"
        assert report.main([*(str(home / name) for name in names), "--out", str(out)]) == 0
        return out.read_text()

    return page


def chart(page, title):
    return re.search(rf"<h2>{title}</h2>(.*?)</section>", page, re.S).group(1)


def test_seeds_of_one_setting_belong_together_whatever_the_nodes(home):
    settings = settings_of(find([home / "fedrep", home / "altmin"]))
    assert [s.name for s in settings] == [
        "algo=altmin, eps=1",
        "algo=fedrep, eps=1",
        "algo=fedrep, eps=8",
    ]
    assert [len(s.runs) for s in settings] == [1, 2, 2]
    errors = [
        json.loads((home / f"fedrep/8-{i}/result.json").read_text())["metrics"]["mse"]
        for i in (0, 1)
    ]
    assert settings[2].error == pytest.approx(fmean(errors)) and settings[0].spread is None
    assert settings[2].spread == pytest.approx(abs(errors[0] - errors[1]) / 2**0.5)


def test_a_seed_inside_an_algorithm_s_settings_is_no_other_setting(home):
    settings = settings_of(find([home / "margin", home / "margin-1"]))
    assert len(settings) == 1 and len(settings[0].runs) == 2


def test_error_against_epsilon_has_lines_whiskers_and_references(page):
    drawn = chart(page("fedrep", "altmin", "inf", "alone"), "Error against epsilon")
    assert drawn.count('class="line ') == 2 and drawn.count('class="whisker ') == 3
    assert ">alone</text>" in drawn and ">oracle</text>" in drawn
    assert "algo=fedrep, eps=inf (dashed)" in drawn and "algo=standalone (dashed)" in drawn


def test_all_that_was_asked_for_is_on_the_page(page, home):
    text = page("fedrep", "altmin")
    titles = (
        "Error against epsilon",
        "Error after every step",
        "All settings",
        "Budget by release",
        "What each run guarantees",
    )
    assert all(
        title in text for title in (*titles, "What differs in the configurations", "All runs")
    )
    assert text.count("everything published") == 3, "each setting's guarantee, in words"
    assert "<td>algo.share</td>" in text and "<td>privacy.noise</td>" not in text, (
        "only what differs"
    )
    links = re.findall(r'href="([^"]+)"', text)
    assert len(links) == 5 and all(link.endswith("/report.html") for link in links)
    assert "http" not in text and "<script" not in text and "budgets add up" not in text


def test_kinds_of_errors_are_not_mixed_in_one_chart(page):
    text = page("fedrep", "margin")
    assert text.count("<h2>Error against epsilon</h2>") == 2
    assert (
        "0-1 risk on fresh examples against epsilon" in text
        and "population mean squared error against epsilon" in text
    )


def test_budgets_of_runs_with_secret_noise_add_up(page):
    both = page("discrete")
    assert "budgets add up" in both and "All 2 together cost epsilon" in both
    assert "budgets add up" not in page("discrete/0", "fedrep")


def test_shares_of_the_budget_are_those_of_the_plan(home):
    shares = budget_shares(find([home / "fedrep/1-0"])[0])
    assert shares == pytest.approx({"spectral": 0.55, "gradient": 0.45}, rel=1e-6)
    shares = budget_shares(find([home / "altmin"])[0])
    assert sum(shares.values()) == pytest.approx(1) and len(shares) == 3
    assert budget_shares(find([home / "inf"])[0]) == {}


def test_a_changed_ledger_gives_no_shares_but_a_page(home, tmp_path):
    shutil.copytree(home / "fedrep", tmp_path / "fedrep")
    path = tmp_path / "fedrep/1-0/ledger.jsonl"
    path.write_text(path.read_text().replace('"release": 1', '"release": 2', 1))
    assert budget_shares(find([tmp_path / "fedrep/1-0"])[0]) == {}
    assert (
        report.main([str(tmp_path / "fedrep")]) == 0 and (tmp_path / "fedrep/report.html").exists()
    )


def test_names_are_escaped(home, tmp_path):
    shutil.copytree(home / "alone", tmp_path / "<b>")
    shutil.copytree(home / "altmin", tmp_path / "100%")
    assert (
        report.main(
            [str(tmp_path / "<b>"), str(tmp_path / "100%"), "--out", str(tmp_path / "page.html")]
        )
        == 0
    )
    text = (tmp_path / "page.html").read_text()
    assert (
        "&lt;b&gt;</a>" in text
        and 'href="%3Cb%3E/report.html"' in text
        and 'href="100%25/report.html"' in text
    )


def test_a_run_s_own_page_is_written_again_from_its_files(home, tmp_path):
    shutil.copytree(home / "altmin", tmp_path / "run")
    before = (tmp_path / "run/report.html").read_text()
    (tmp_path / "run/report.html").unlink()
    assert report.main([str(tmp_path / "run")]) == 0
    after = (tmp_path / "run/report.html").read_text()
    assert after == before


def test_users_alone_are_not_compared_with_themselves(home):
    alone, altmin = ((home / name / "report.html").read_text() for name in ("alone", "altmin"))
    for words in ("against each user alone", "What a head gains over learning alone"):
        assert words in altmin and words not in alone


def test_a_page_without_the_numbers_of_its_pictures_has_the_rest(home, tmp_path):
    shutil.copytree(home / "altmin", tmp_path / "run")
    (tmp_path / "run/details.json").unlink()
    assert report.main([str(tmp_path / "run")]) == 0
    after = (tmp_path / "run/report.html").read_text()
    assert "Budget after every step" in after and "What a head gains" not in after


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such folder"),
        ({}, "no finished run"),
        ({"result.json": '{"algo'}, "result.json: cannot be read"),
        ({"result.json": "[1]"}, "no JSON object"),
        ({"result.json": "{}"}, "not the result of a run"),
        ({"below/result.json": '{"algo'}, "below/result.json: cannot be read"),
    ],
    ids=str,
)
def test_what_cannot_be_reported_is_one_line(tmp_path, capfd, content, words):
    if content is not None:
        (tmp_path / "run").mkdir()
    for name, text in (content or {}).items():
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text(text)
    assert report.main([str(tmp_path / "run")]) == 2
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1 and words in err


def test_an_audit_is_not_a_run_and_what_was_replaced_is_left_out(home, tmp_path, capfd):
    shutil.copytree(home / "altmin", tmp_path / "run")
    shutil.copytree(home / "alone", tmp_path / "run/previous-1")
    assert len(find([tmp_path])) == 1
    result = json.loads((tmp_path / "run/result.json").read_text())
    (tmp_path / "run/result.json").write_text(json.dumps(result | {"audit": {}}))
    assert report.main([str(tmp_path / "run")]) == 2 and "audit.html" in capfd.readouterr().err


def test_a_reference_that_changes_with_epsilon_is_a_dashed_line_with_its_name():
    svg = line_chart(
        [Series("ref", [1.0, 0.1], [1, 8], ""), Series("own", [0.5, 0.2], [1, 8])],
        "epsilon",
        "error",
        True,
        True,
    )
    assert svg.count('class="level "') == 1 and ">ref</text>" in svg and "ref</li>" not in svg


@pytest.mark.parametrize("y", [[0.0, 0.0], [1e-3, 0.0]])
def test_charts_stand_zeros_on_a_logarithmic_scale_and_a_single_place(y):
    assert "nan" not in line_chart(
        [Series("a", y, [2, 2], whiskers=([-1.0, -1.0], y))], "x", "y", log_y=True, log_x=True
    )
