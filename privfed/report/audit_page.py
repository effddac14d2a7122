"""audit.html: the page of an audit, with the trade-off curve between the two worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.report.audit_console import Audit, audit_verdict, describe_bounds, effort
from privfed.report.charts import Series, histogram_chart, line_chart
from privfed.report.templating import Figure, Page, Picture, TextTable, render


@dataclass(frozen=True)
class Curves:
    """Data of the charts of an audit: a statistic in two worlds, measured against the claim.

    Attributes:
        statistic: Name of the statistic.
        ones: Its values in one world, shape (repetitions,).
        zeros: Its values in the other world, shape (repetitions,).
        fpr: False positive rate per threshold, shape (thresholds,).
        fnr: False negative rate per threshold, shape (thresholds,).
        low: Lower end of the band around `fnr`, shape (thresholds,).
        high: Upper end of the band around `fnr`, shape (thresholds,).
        grid: False positive rates at which the claim is drawn, shape (points,).
        claimed: Least false negative rate that the claim allows at each of `grid`, shape (points,).
        confidence: Confidence of the band at each threshold.
    """

    statistic: str
    ones: Array
    zeros: Array
    fpr: Array
    fnr: Array
    low: Array
    high: Array
    grid: Array
    claimed: Array
    confidence: float


@dataclass(frozen=True, kw_only=True)
class AuditPage(Page):
    """Content of audit.html: verdict, lower bounds, charts (none for one run), configuration."""

    verdict: str
    bounds: TextTable
    pictures: Sequence[Picture]
    config: str


def audit_page(result: dict[str, Any], curves: Curves | None, config: str) -> str:
    """Return the HTML of the page of an audit.

    Args:
        result: Content of result.json, with its part "audit".
        curves: Data of the charts; None for an audit of one run, which has no charts.
        config: The configuration as YAML.
    """
    audit = result["audit"]
    found, sentence = "consistent" if audit["consistent"] else "claim refuted", audit_verdict(audit)
    return render(
        "audit.html.md",
        AuditPage(
            title=f"audit of {result['algo']}: {found}",
            subtitle=f"{effort(result)}, {result['privacy']['noise']} noise, seed {result['seed']}",
            figures=_figures(result),
            versions=result["versions"],
            verdict=f"{sentence[0].upper()}{sentence[1:]}.",
            bounds=TextTable(["lower bound", "epsilon"], describe_bounds(audit)),
            pictures=[] if curves is None else [_trade_off(curves, audit), _values(curves)],
            config=config,
        ),
    )


def _figures(result: dict[str, Any]) -> list[Figure]:
    audit = result["audit"]
    claim = f"δ {audit['delta']:g}, {result['privacy']['neighbouring']}"
    confidence = f"confidence {audit['confidence']:g}"
    played = f"{effort(result)}, {result['time']['total_s']:.0f} s"
    return [
        Figure("claimed", f"ε {audit['epsilon_claimed']:.4g}", claim),
        Figure("at least", f"ε {audit['epsilon_lower']:.4g}", confidence),
        Figure("played", f"{audit['repetitions']:,}", played),
    ]


def _trade_off(curves: Curves, audit: Audit) -> Picture:
    band = curves.low.tolist(), curves.high.tolist()
    series = [
        Series("measured", curves.fnr.tolist(), curves.fpr.tolist(), "c1", band),
        Series("claimed", curves.claimed.tolist(), curves.grid.tolist(), "c2"),
    ]
    allowed = "a Gaussian release" if "mu_claimed" in audit else "a release"
    note = (
        f"Every threshold on the {curves.statistic}. A curve below the claimed one, that of "
        f"{allowed} of the claimed epsilon, would refute the claim. The band holds the false "
        f"negative rate point by point, with confidence {curves.confidence:g}."
    )
    chart = line_chart(series, "false positive rate", "false negative rate")
    return Picture("Telling the two worlds apart", chart, note)


def _values(curves: Curves) -> Picture:
    edges = np.histogram_bin_edges(np.concatenate([curves.ones, curves.zeros]), 40)
    series = [
        Series(name, np.histogram(values, edges)[0].tolist(), colour=colour)
        for name, values, colour in (
            ("one world", curves.ones, "c1"),
            ("the other", curves.zeros, "c2"),
        )
    ]
    note = (
        "All releases of a run in one number: the log likelihood ratio of the two worlds, up to a "
        "constant. Privacy is how much the two histograms overlap."
    )
    chart = histogram_chart(edges.tolist(), series, curves.statistic, "runs", False)
    return Picture("What an attacker sees", chart, note)
