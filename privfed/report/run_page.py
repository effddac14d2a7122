"""report.html: one self-contained page a run, readable on a phone and on a desk, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.error_bins import Scale
from privfed.foundation.linalg import Array
from privfed.report.charts import Series, heat_map, histogram_chart, line_chart
from privfed.report.gain_chart import gain_body
from privfed.report.wording import (
    ERRORS,
    FIGURES,
    comparison,
    error_in_words,
    error_of,
    guarantee_in_words,
    name_step,
    speed_in_words,
    verdict,
)

Row = dict[str, Any]
LEVELS = (
    ("standalone", "each user alone", "c2"), ("oracle", "oracle", "c3"), ("global", "global private model", "c3"),
    ("offset", "and personal offset", "c4"),
)  # fmt: skip
"""Errors to compare with: the end of their name, what they are, and a colour."""
SHOWN = 60
"""Users whose examples are drawn in the picture of a split."""

STYLE = """
:root{--page:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5c6675;--line:#dfe3e9;--c1:#2563c9;--c2:#c2571a;--c3:#1d7f4f;--c4:#7b4bb7;
--c5:#b3261e;--c6:#0b7a8a;--c7:#8a6d00;--c8:#c2408f;--c:var(--soft);color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b212a;--ink:#e8ecf2;--soft:#9aa5b4;--line:#323b48;--c1:#6ea3ff;
--c2:#f0935a;--c3:#5fc896;--c4:#b690ea;--c5:#ff8a80;--c6:#4fc3d6;--c7:#d9b93f;--c8:#f08cc8}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.6rem;margin:0 0 4px}h2{font-size:1.05rem;margin:0 0 8px}
p{margin:0 0 8px}.card>:last-child{margin-bottom:0}.scroll+.soft{margin-top:8px}.soft{color:var(--soft);font-size:.9rem}
.grid-cards{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));margin:16px 0}
.figures{grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}.figures h2{font-size:.85rem;color:var(--soft);margin:0}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;min-width:0}
.wide{grid-column:1/-1}.figure{font-size:clamp(1.15rem,5vw,1.7rem);font-weight:650;line-height:1.2}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}svg tspan{font-size:75%}
svg .name{paint-order:stroke;stroke:var(--card);stroke-width:4px}
.grid{stroke:var(--line)}.axis,.tick{stroke:var(--soft)}
.line,.whisker,.level{fill:none;stroke-width:2}.whisker{stroke-width:1.4}.level{stroke-width:1.6;stroke-dasharray:6 4}
.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}
.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}.c8{--c:var(--c8)}
.line,.level,.whisker{stroke:var(--c)}.dot,.bar,.cell{fill:var(--c)}.bar{opacity:.65}.band{fill:var(--c);opacity:.25}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0;padding:0;font-size:.85rem;color:var(--soft)}
.key{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:6px;background:var(--c);vertical-align:middle}
.scroll{overflow-x:auto}.wrap td:not(.n),.wrap th{white-space:normal}
@media(max-width:480px){svg text{font-size:16px}}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
details summary{cursor:pointer;font-weight:600}details[open] summary{margin-bottom:8px}
.stack{display:flex;height:12px;min-width:120px;border-radius:3px;overflow:hidden}.stack i{background:var(--c)}
a{color:var(--c1)}:focus-visible{outline:2px solid var(--c1);outline-offset:2px}
pre{overflow-x:auto;font-size:.8rem;margin:0}
"""


def report_page(
    result: Row,
    rows: Sequence[Row],
    histograms: dict[str, Array],
    scale: Scale | None,
    config: str,
    split: NDArray[np.int64] | None = None,
    by_size: Array | None = None,
) -> str:
    """The page of one run."""
    privacy = result["privacy"]
    epsilon = (
        privacy["epsilon"] if isinstance(privacy["epsilon"], str) else f"{privacy['epsilon']:.4g}"
    )
    cost = (
        "no privacy"
        if privacy["guarantee"] == "none"
        else f"epsilon {epsilon}"
        if privacy["releases"]
        else "nothing released"
    )
    title = f"{result['algo']}: {cost}"
    notes = "".join(f"<p>{escape(note)}</p>" for note in result.get("notes", []))
    words = f"<p>{escape(guarantee_in_words(result))}</p>{notes}"
    said = verdict(result["metrics"])
    came_out = (f"<p><strong>{escape(said)}</strong></p>" if said else "") + _comparison(result)
    cards = [card("What came out", came_out)] if came_out else []
    cards.append(card("What was guaranteed", words))
    judged = [row for row in rows if any(name in row for name in ERRORS)]
    if len(judged) > 1:
        cards.append(_error_card(judged, result))
    if rows and math.isfinite(rows[-1]["epsilon"]):
        cards.append(_budget_card(rows, privacy["target_epsilon"]))
    if "gain" in histograms:
        cards.append(
            card(
                "Who gains by a personal model",
                gain_body(histograms["gain"], by_size, result["metrics"]),
            )
        )
    elif scale is not None and result["algo"] != "standalone":
        cards.append(_benefit_card(histograms, scale, result))
    if split is not None:
        cards.append(_split_card(split))
    if rows:
        cards.append(details("Every step", _table(rows, rows[-1]["task"], result["rounds"])))
    cards.append(details("Configuration", f"<pre>{escape(config)}</pre>"))
    where = f"{result['n_users']:,} users on {result['n_nodes']} node(s), {result['runtime']}, seed {result['seed']}"
    return whole_page(title, where, _figures(result, epsilon), cards, result["versions"])


def whole_page(title: str, subtitle: str, figures: str, cards: Sequence[str], versions: Row) -> str:
    """A page of cards, with some figures above."""
    footer = ", ".join(f"{name} {value}" for name, value in versions.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>privfed: {escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body><main>'
        f'<h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p>{figures}'
        f'<div class="grid-cards">{"".join(cards)}</div>'
        f'<p class="soft">{escape(footer)}</p></main></body></html>\n'
    )


def card(title: str, body: str, wide: bool = False) -> str:
    """A box with a title, across the page if it is wide."""
    return (
        f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}</h2>{body}</section>'
    )


def details(title: str, body: str) -> str:
    """A box across the page that opens on demand."""
    inside = f'<summary>{escape(title)}</summary><div class="scroll">{body}</div>'
    return f'<section class="card wide"><details>{inside}</details></section>'


def _figures(result: Row, epsilon: str) -> str:
    metrics, spent = result["metrics"], result["time"]
    figures = []
    error = error_of(metrics)
    if error:
        whose = "error of the matrix" if error == "frobenius" else "error of the personal models"
        figures.append((whose, f"{metrics[error]:.3g}", error_in_words(result)))
    if f"{error}_standalone" in metrics and result["algo"] != "standalone":
        alone = metrics[f"{error}_standalone"]
        figures.append(
            ("against each user alone", _ratio(metrics[error], alone), f"alone: {alone:.3g}")
        )
    figures.append(
        (
            "privacy spent",
            f"ε {epsilon}",
            f"δ {result['privacy']['delta']:g}, {result['privacy']['neighbouring']}",
        )
    )
    if "user_rounds_per_s" in spent:
        speed = speed_in_words(spent["user_rounds_per_s"])
        figures.append(
            (
                "user-rounds a second",
                speed,
                f"{spent['total_s']:.1f} s in all, {result['peak_rss_mb']:.0f} MB",
            )
        )
    return figure_cards(figures)


def figure_cards(figures: Sequence[tuple[str, str, str]]) -> str:
    """Large figures side by side: (what it is, the figure, a note)."""
    cards = "".join(
        card(name, f'<p class="figure">{escape(value)}</p><p class="soft">{escape(note)}</p>')
        for name, value, note in figures
    )
    return f'<div class="grid-cards figures">{cards}</div>'


def _ratio(own: float, alone: float) -> str:
    """How an error compares with that of users alone, either of which may be 0."""
    low, high = sorted((own, alone))
    if low == high:
        return "equal"
    word = "lower" if own < alone else "higher"
    if low == 0:
        return word
    return f"{high / low:,.3g}x {word}" if high < 10 * low else f"{high / low:,.0f}x {word}"


def _comparison(result: Row) -> str:
    metrics = result["metrics"]
    if not error_of(metrics):
        return ""
    figures = comparison(metrics) + [
        (words, metrics[key]) for key, words in FIGURES.items() if key in metrics
    ]
    rows = "".join(
        f'<tr><td>{escape(words)}</td><td class="n">{value:.4g}</td></tr>'
        for words, value in figures
    )
    head = f"<thead><tr><th>{error_in_words(result)} (simulation, not private)</th><th></th></tr></thead>"
    return f'<div class="scroll wrap"><table>{head}<tbody>{rows}</tbody></table></div>'


def _error_card(rows: Sequence[Row], result: Row) -> str:
    metrics, rows_judge = result["metrics"], "judged" in result
    error = next(name for name in ERRORS if name in rows[0])
    personal = error != "frobenius"
    name = "this run, on fresh users" if personal and not rows_judge else "this run"
    series = [Series(name, [row[error] for row in rows], [row["step"] for row in rows], "c1")]
    for end, words, colour in LEVELS:
        if f"{error}_{end}" in metrics:
            series.append(Series(words, [metrics[f"{error}_{end}"]], colour=colour))
    fresh = "Fresh users never take part, so looking at their error costs no privacy."
    some = "Held-out rows of some of the users, as training goes on. Not private: shown because this is a simulation."
    note = f'<p class="soft">{some if rows_judge else fresh}</p>' if personal else ""
    return card(
        "Error after every step",
        line_chart(series, "step", error_in_words(result, error), log_y=error != "risk") + note,
    )


def _budget_card(rows: Sequence[Row], target: float) -> str:
    series = [
        Series(
            "spent",
            [0.0] + [row["epsilon"] for row in rows],
            [0] + [row["step"] for row in rows],
            "c4",
        ),
        Series("budget", [target], colour="c2"),
    ]
    note = '<p class="soft">The initialiser and private clip norms are charged like any other release; all compose exactly.</p>'
    return card("Budget after every step", line_chart(series, "step", "epsilon") + note)


def _benefit_card(histograms: dict[str, Array], scale: Scale, result: Row) -> str:
    metrics = result["metrics"]
    series = [Series("own head, shared representation", list(histograms["own"]), colour="c1")]
    if "alone" in histograms:
        series.append(Series("alone", list(histograms["alone"]), colour="c2"))
    label = "excess error of a user" if scale.log else "error of a user"
    chart = histogram_chart(list(scale.edges), series, label, "users", scale.log)
    own, alone = metrics[error_of(metrics)], metrics.get(f"{error_of(metrics)}_standalone")
    against = (
        ""
        if alone is None
        else f", {'lower' if own < alone else 'not lower'} than alone: {alone:.3g}"
    )
    note = f'<p class="soft">Mean error {own:.3g}{against}. Not private: shown because this is a simulation.</p>'
    title = "Error from user to user" if alone is None else "What a head gains over learning alone"
    return card(title, chart + note)


def _split_card(split: NDArray[np.int64]) -> str:
    shown = min(len(split), SHOWN)
    kinds, sizes = np.count_nonzero(split, axis=1), split.sum(axis=1)
    note = (
        f"{range_of(sizes)} training examples of {range_of(kinds)} classes a user; the darker, the more examples. "
        f"{'All' if shown == len(split) else f'The first {shown} of {len(split):,}'} users. Not private: this is a simulation."
    )
    return card(
        "How examples are split over users",
        heat_map(split[:shown].T, "user", "class") + f'<p class="soft">{note}</p>',
    )


def range_of(numbers: NDArray[np.int64]) -> str:
    """Smallest to largest, as one number where they agree."""
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


def _table(rows: Sequence[Row], task: str, rounds: int) -> str:
    names = {"clip": "clip norm", "noise_std": "noise std", "epsilon": "epsilon spent"}
    names |= {name: "error" for name in ERRORS} | {"dist": "distance"}
    columns = {key: name for key, name in names.items() if any(key in row for row in rows)}
    head = "".join(f'<th class="n">{name}</th>' for name in columns.values())
    body = "".join(
        f"<tr><td>{escape(name_step(row, task, rounds))}</td>"
        + "".join(
            f'<td class="n">{f"{row[key]:.4g}" if key in row else ""}</td>' for key in columns
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr><th>step</th>{head}</tr></thead><tbody>{body}</tbody></table>"
