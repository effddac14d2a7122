"""What a person sees of an audit: progress, a summary in words, and audit.html with the trade-off curve."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import TextColumn

from privfed.audit.lower_bounds import TradeOff, claimed_trade_off, measured_trade_off
from privfed.audit.verdict import COUNTED, GAUSSIAN, LIKELIHOOD, Findings
from privfed.experiment.wiring import Experiment
from privfed.foundation.linalg import Array
from privfed.report.charts import Series, histogram_chart, line_chart
from privfed.report.progress import PatientConsole, Watched, bar
from privfed.report.run_page import card, details, figure_cards, whole_page

Audit = dict[str, Any]
METHODS = {GAUSSIAN: "Gaussian fit", COUNTED: "Clopper-Pearson"}
NOTE = (
    '<p class="soft">All releases of a run in one number: the log likelihood ratio of the two worlds, up to a constant. '
    "Privacy is how much the two histograms overlap.</p>"
)
WORLDS = (
    '<p class="soft">Worlds: the canary sends as much as it may in some direction (plus), the same in the opposite direction '
    "(minus), or nothing at all (silent).</p>"
)


class Progress(Watched):
    """A bar with the time left on a terminal, a few plain lines elsewhere."""

    def __init__(self, experiment: Experiment, options: argparse.Namespace) -> None:
        self.console = PatientConsole(quiet=options.quiet, highlight=False)
        self.total, self.started, self.told = options.repetitions, time.perf_counter(), 0.0
        self.bar = bar(self.console, TextColumn("repetitions"), width=20)
        self.task = self.bar.add_task("", total=self.total)
        budget, releases = experiment.budget, len(experiment.ledger.releases)
        self.console.print(
            f"auditing {experiment.cfg.algo.name}: epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.neighbouring}, "
            f"{experiment.federation.gate.source.name} noise; {releases} release(s) a run",
            soft_wrap=True,
        )

    def done(self, repetitions: int) -> None:
        """So many repetitions are over."""
        self.bar.update(self.task, completed=repetitions)
        share = repetitions / self.total
        if self.bar.disable and share >= self.told + 0.2 and share < 1:
            self.told = share
            left = (time.perf_counter() - self.started) * (1 / share - 1)
            self.console.print(
                f"  {repetitions:,} of {self.total:,} repetitions, about {left:.0f} s left",
                soft_wrap=True,
            )


def verdict(audit: Audit) -> str:
    """One sentence."""
    lower, claimed, sure = (
        f"{audit['epsilon_lower']:.4g}",
        f"{audit['epsilon_claimed']:.4g}",
        f"{audit['confidence']:.4%}",
    )
    sure = sure.rstrip("%").rstrip("0").rstrip(".") + "%"
    if audit["consistent"]:
        return f"the claim of epsilon {claimed} is consistent with the audit: epsilon is at least {lower} (confidence {sure})"
    return f"the claim of epsilon {claimed} is refuted: epsilon is at least {lower} (confidence {sure})"


def described(audit: Audit) -> list[tuple[str, str]]:
    """The bounds in words, each with its epsilon."""
    if audit["kind"] == "one run":
        return [
            (
                f"{t['right']} of the {t['guesses']} most confident guesses right",
                f"{t['epsilon_lower']:.4g}",
            )
            for t in audit["tries"]
        ]
    lines = []
    for bound in audit["bounds"]:
        name = f"{METHODS[bound['method']]} of the {bound['statistic']} ({bound['worlds']})"
        why = (
            "not used: the claim is not Gaussian"
            if "mu_claimed" not in audit
            else "not used: the values are not normal"
        )
        lines.append((name, f"{bound['epsilon_lower']:.4g}" if bound["applies"] else why))
    return lines


def show_summary(result: dict[str, Any], folder: Path) -> None:
    """The end of an audit, in plain words."""
    console, audit = PatientConsole(highlight=False), result["audit"]
    rows = [("claimed by the ledger", f"{audit['epsilon_claimed']:.4g}")]
    rows += [
        (f"at least, by {name}" if i == 0 else f"          by {name}", value)
        for i, (name, value) in enumerate(described(audit))
    ]
    width = max(len(name) for name, _ in rows)
    console.print(f"epsilon at delta {audit['delta']:g}, {result['privacy']['neighbouring']}:")
    for name, value in rows:
        console.print(f"  {name:<{width}}  {value}", soft_wrap=True)
    if "mu_claimed" in audit:
        console.print(
            f"mu {audit['mu_claimed']:.4g} claimed, {audit['mu']:.4g} measured, at least {audit['mu_lower']:.4g}"
        )
    sentence = verdict(audit)
    console.print(sentence[0].upper() + sentence[1:] + ".")
    console.print(f"{effort(result)}, {result['time']['total_s']:.1f} s in all.")
    console.print(
        f"written to {folder}: result.json, audit.html, ledger.jsonl, config.yaml", soft_wrap=True
    )


def effort(result: dict[str, Any]) -> str:
    """What was played."""
    audit = result["audit"]
    if audit["kind"] == "one run":
        return f"1 run with {audit['canaries']:,} canaries"
    return f"{audit['repetitions']:,} repetitions, {audit['runs']:,} runs of {result['privacy']['releases']} release(s)"


@dataclass(frozen=True)
class Curves:
    """A statistic's values in the two worlds, their trade-off curve, and the claimed one on a grid of false positive rates."""

    ones: Array
    zeros: Array
    measured: TradeOff
    grid: Array
    claimed: Array
    confidence: float


def curves_of(findings: Findings, audit: Audit) -> Curves:
    """What the picture shows: thresholds on the likelihood ratio."""
    grid = np.unique(
        np.concatenate([[0.0], np.geomspace(1e-6, 1, 120), np.linspace(0.001, 1, 120)])
    )
    measured = measured_trade_off(findings.ones, findings.zeros, 1 - audit["confidence"])
    claimed = claimed_trade_off(
        audit["epsilon_claimed"], audit["delta"], audit.get("mu_claimed"), grid
    )
    return Curves(findings.ones, findings.zeros, measured, grid, claimed, audit["confidence"])


def audit_page(result: dict[str, Any], curves: Curves | None, config: str) -> str:
    """audit.html."""
    audit = result["audit"]
    title = f"audit of {result['algo']}: {'consistent' if audit['consistent'] else 'claim refuted'}"
    figures = figure_cards(
        [
            (
                "claimed",
                f"ε {audit['epsilon_claimed']:.4g}",
                f"δ {audit['delta']:g}, {result['privacy']['neighbouring']}",
            ),
            ("at least", f"ε {audit['epsilon_lower']:.4g}", f"confidence {audit['confidence']:g}"),
            (
                "played",
                f"{audit['repetitions']:,}",
                f"{effort(result)}, {result['time']['total_s']:.0f} s",
            ),
        ]
    )
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{escape(value)}</td></tr>'
        for name, value in described(audit)
    )
    head = '<thead><tr><th>lower bound</th><th class="n">epsilon</th></tr></thead>'
    table = f'<div class="scroll wrap"><table>{head}<tbody>{rows}</tbody></table></div>'
    sentence = verdict(audit)
    words = f"<p>{escape(sentence[0].upper() + sentence[1:])}.</p>{table}{'' if curves is None else WORLDS}"
    cards = [card("What was found", words, wide=True)]
    if curves is not None:
        cards.append(
            card("Telling the two worlds apart", _trade_off(curves) + _caption(curves, audit))
        )
        cards.append(card("What an attacker sees", _values(curves) + NOTE))
    cards.append(details("Configuration", f"<pre>{escape(config)}</pre>"))
    where = f"{effort(result)}, {result['privacy']['noise']} noise, seed {result['seed']}"
    return whole_page(title, where, figures, cards, result["versions"])


def _caption(curves: Curves, audit: Audit) -> str:
    allowed = "a Gaussian release" if "mu_claimed" in audit else "a release"
    return (
        f'<p class="soft">Every threshold on the {LIKELIHOOD}. A curve below the claimed one, that of {allowed} of the claimed '
        "epsilon, would refute the claim. The band holds the false negative rate point by point, with confidence "
        f"{curves.confidence:g}.</p>"
    )


def _trade_off(curves: Curves) -> str:
    m = curves.measured
    series = [
        Series("measured", m.fnr.tolist(), m.fpr.tolist(), "c1", (m.low.tolist(), m.high.tolist())),
        Series("claimed", curves.claimed.tolist(), curves.grid.tolist(), "c2"),
    ]
    return line_chart(series, "false positive rate", "false negative rate")


def _values(curves: Curves) -> str:
    edges = np.histogram_bin_edges(np.concatenate([curves.ones, curves.zeros]), 40)
    series = [
        Series(name, np.histogram(values, edges)[0].tolist(), colour=colour)
        for name, values, colour in (
            ("one world", curves.ones, "c1"),
            ("the other", curves.zeros, "c2"),
        )
    ]
    return histogram_chart(edges.tolist(), series, LIKELIHOOD, "runs", False)
