"""The pages in a real browser: nothing broken, nothing cut off, readable, usable by keyboard."""

from __future__ import annotations

import contextlib

import pytest
from support.browser import Browser, find_chromium

CHARTS = """[...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const ink = svg.querySelectorAll('polyline, rect, circle, polygon, path');
  return {width: box.width, height: box.height, marks: [...ink].filter(mark => {
    const own = mark.getBoundingClientRect(), style = getComputedStyle(mark);
    const colour = style.fill != 'none' ? style.fill : style.stroke;
    return own.width + own.height > 0 && colour != 'none' && colour != 'rgba(0, 0, 0, 0)';
  }).length, outside: [...svg.querySelectorAll('text')].filter(text => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1
      || own.top < box.top - 1 || own.bottom > box.bottom + 1;
  }).map(text => text.textContent)};
})"""
OVERFLOW = """[...document.querySelectorAll('main *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.right > innerWidth + 1
    && !one.closest('.scroll') && !one.closest('pre') && !one.closest('svg');
}).map(one => one.outerHTML.slice(0, 100))"""
CONTRAST = """(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = one => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (colour != 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const words = [...document.querySelectorAll('h1, h2, p, td, th, li, summary, pre, a, svg text')];
  return words.filter(one => one.textContent.trim()).map(one => {
    const style = getComputedStyle(one);
    const own = light(one instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [own, light(below(one))].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), one.outerHTML.slice(0, 80)];
  }).sort((a, b) => a[0] - b[0])[0];
})()"""
PAGES = {
    "fedrep": ("report.html", 3),
    "altmin": ("report.html", 3),
    "images": ("report.html", 2),
    "audit": ("audit.html", 2),
    "comparison": ("comparison.html", 2),
}
"""Where each page is, and how many charts it has at least."""


@pytest.fixture(scope="module")
def browser():
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on PATH, nor in PRIVFED_CHROMIUM")
    with contextlib.closing(Browser(path)) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder with every kind of page."""
    from privfed.commands import audit, report, run

    home = tmp_path_factory.mktemp("pages")
    small = ["data.n=200", "data.d=8", "data.m=6", "--quiet"]
    runs = {
        "fedrep": [*small, "rounds=4", "privacy.clip=auto"],
        "altmin": [*small, "algo=altmin", "rounds=3"],
        "images": ["algo=headmean", "data.n=60", "model.pictures=300", "model.k=20", "--quiet"],
        "fedrep-2": [*small, "rounds=4", "privacy.clip=auto", "seed=1"],
        "fedrep-8": [*small, "rounds=4", "privacy.clip=auto", "eps=8"],
    }
    for name, line in runs.items():
        assert run.main([*line, f"out={home / name}"]) == 0, name
    assert audit.main(["rounds=2", "--repetitions", "60", "--quiet", f"out={home / 'audit'}"]) == 0
    compared = [str(home / name) for name in ("fedrep", "fedrep-2", "fedrep-8", "altmin")]
    (home / "comparison").mkdir()
    assert report.main([*compared, "--out", str(home / "comparison/comparison.html")]) == 0
    return home


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_fits_and_can_be_read(browser, pages, name, width, dark):
    file, charts = PAGES[name]
    browser.open(pages / name / file, width, dark)
    assert browser.complaints == []
    assert browser.ask("innerWidth") == width
    browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERFLOW) == []
    drawn = browser.ask(CHARTS)
    assert len(drawn) >= charts
    for chart in drawn:
        assert (
            chart["width"] > 250
            and chart["height"] > 150
            and chart["marks"] > 0
            and not chart["outside"]
        ), chart
    page = browser.ask("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in page.strip("rgb()").split(","))
    assert brightness < 150 if dark else brightness > 600
    ratio, where = browser.ask(CONTRAST)
    assert ratio >= 4.5, where


@pytest.mark.parametrize("name", PAGES)
def test_what_is_folded_can_be_reached_and_opened_by_keyboard(browser, pages, name):
    browser.open(pages / name / PAGES[name][0])
    folded = browser.ask("document.querySelectorAll('details').length")
    assert folded >= 1 and browser.ask("document.querySelectorAll('details[open]').length") == 0
    for _ in range(40):
        browser.press("Tab")
        if browser.ask("document.activeElement.tagName") == "SUMMARY":
            browser.press("Enter")
        if browser.ask("document.querySelectorAll('details[open]').length") == folded:
            break
    assert browser.ask("document.querySelectorAll('details[open]').length") == folded
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") != "none", (
        "the focus must be seen"
    )


def test_runs_are_linked_from_their_comparison(browser, pages):
    browser.open(pages / "comparison/comparison.html")
    links = browser.ask("[...document.querySelectorAll('a')].map(one => one.href)")
    assert len(links) == 4
    browser.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.loaded = False
    browser.ask("document.querySelector('a').click()")
    while not browser.loaded:
        browser._next()
    assert browser.ask("document.title").startswith("privfed:")


def test_the_browser_would_notice(browser, tmp_path):
    """The checks above are worth nothing unless they fail on a bad page."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'>"
        "<main><p style='color:#bbb'>pale</p>"
        "<div style='width:2000px'>wide</div><svg></svg></main>"
        "<script>nowhere()</script><img src='http://127.0.0.1:9/x'>"
    )
    browser.open(bad, 360)
    assert any("Uncaught" in words for words in browser.complaints)
    assert any("127.0.0.1" in words for words in browser.complaints)
    assert browser.ask("document.documentElement.scrollWidth") > 360 and browser.ask(OVERFLOW)
    assert browser.ask(CHARTS)[0]["marks"] == 0 and browser.ask(CONTRAST)[0] < 4.5
