"""Templates: a missing value is an error, text is escaped, Jinja is imported late."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from privfed.report.audit_page import AuditPage
from privfed.report.templating import Figure, Page, Picture, TextTable, render

PAGE = AuditPage(
    title="audit",
    subtitle="of a test",
    figures=[Figure("claimed", "1", "delta 0")],
    versions={"python": "3", "privfed": "1"},
    verdict="Consistent.",
    bounds=TextTable(["lower bound", "epsilon"], [["a fit", "0.5"]]),
    pictures=[Picture("Chart", Markup("<svg></svg>"), "a note", TextTable(["n"], [["7"]], 0))],
    config="eps: 1",
)


class Tags(HTMLParser):
    """Refuses tags that are not closed in order, and keeps the names of all."""

    def __init__(self, page):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_one_whole_file():
    page = render("audit.html.md", PAGE)
    seen = Tags(page).seen
    assert {"style", "main", "svg", "table", "details", "footer"} <= seen
    assert not seen & {"link", "script", "img"} and "url(" not in page
    assert '<td class="n">0.5</td>' in page and "<td>a fit</td>" in page


def test_everything_but_drawings_is_escaped():
    bad = "<b>'\"&"
    page = render(
        "audit.html.md",
        replace(
            PAGE,
            title=bad,
            subtitle=bad,
            figures=[Figure(bad, bad, bad)],
            versions={bad: bad},
            verdict=bad,
            bounds=TextTable([bad, bad], [[bad, bad]]),
            pictures=[Picture(bad, Markup("<svg></svg>"), bad, TextTable([bad], [[bad]]))],
            config=bad,
        ),
    )
    assert bad not in page and "b" not in Tags(page).seen and "<svg></svg>" in page


def test_a_value_that_is_missing_is_an_error():
    @dataclass(frozen=True, kw_only=True)
    class Incomplete(Page):
        verdict: str = ""

    page = Incomplete(title="", subtitle="", figures=[], versions={})
    with pytest.raises(UndefinedError, match="bounds"):
        render("audit.html.md", page)


def test_jinja_is_imported_only_when_a_page_is_written():
    lines = "import sys, privfed.report.run_files; sys.exit('jinja2.environment' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", lines]).returncode == 0
