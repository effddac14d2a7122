"""Console output of an audit: progress, and a summary in words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.progress import TextColumn

from privfed.privacy.ledger import Budget
from privfed.report.sweep_console import LiveDisplay, PatientConsole, bar

Audit = dict[str, Any]
METHODS = {"gaussian-fit": "Gaussian fit", "clopper-pearson": "Clopper-Pearson"}
"""Methods by their names in result.json."""


class AuditProgress(LiveDisplay):
    """Shows a bar with the time left on a terminal, and a few plain lines elsewhere.

    Args:
        algo: Name of the audited algorithm.
        budget: What the audited run may spend.
        noise: Name of the source of noise.
        releases: Number of releases per run.
        repetitions: Number of repetitions.
        quiet: Show nothing.
    """

    def __init__(
        self,
        *,
        algo: str,
        budget: Budget,
        noise: str,
        releases: int,
        repetitions: int,
        quiet: bool = False,
    ) -> None:
        self.console = PatientConsole(quiet=quiet, highlight=False)
        self.total, self.started, self.told = repetitions, time.perf_counter(), 0.0
        self.bar = bar(self.console, TextColumn("repetitions"), width=20)
        self.task = self.bar.add_task("", total=self.total)
        self.console.print(
            f"auditing {algo}: epsilon {budget.epsilon:g}, delta {budget.delta:g}, "
            f"{budget.neighbouring}, {noise} noise; {releases} release(s) a run",
            soft_wrap=True,
        )

    def done(self, repetitions: int) -> None:
        """Show that `repetitions` of them are done."""
        self.bar.update(self.task, completed=repetitions)
        share = repetitions / self.total
        if self.bar.disable and share >= self.told + 0.2 and share < 1:
            self.told = share
            left = (time.perf_counter() - self.started) * (1 / share - 1)
            self.console.print(
                f"  {repetitions:,} of {self.total:,} repetitions, about {left:.0f} s left",
                soft_wrap=True,
            )


def audit_verdict(audit: Audit) -> str:
    """Return in one sentence whether the claim is consistent with the audit."""
    lower, claimed = f"{audit['epsilon_lower']:.4g}", f"{audit['epsilon_claimed']:.4g}"
    sure = f"{audit['confidence']:.4%}".rstrip("%").rstrip("0").rstrip(".") + "%"
    found = "consistent with the audit" if audit["consistent"] else "refuted"
    bound = f"epsilon is at least {lower} (confidence {sure})"
    if audit.get("ledger"):
        bound = f"{audit['ledger'][0]}; {bound}"
    return f"the claim of epsilon {claimed} is {found}: {bound}"


def describe_bounds(audit: Audit) -> list[tuple[str, str]]:
    """Return each lower bound in words, with its epsilon or the reason why it is not used."""
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


def effort(result: dict[str, Any]) -> str:
    """Return the numbers of repetitions and runs, in words."""
    audit = result["audit"]
    if audit["kind"] == "one run":
        return f"1 run with {audit['canaries']:,} canaries"
    releases = result["privacy"]["releases"]
    return f"{audit['repetitions']:,} repetitions, {audit['runs']:,} runs of {releases} release(s)"


def show_audit_summary(result: dict[str, Any], folder: Path) -> None:
    """Print the results of an audit.

    Args:
        result: Content of result.json, with its part "audit".
        folder: Folder of the audit.
    """
    console, audit = PatientConsole(highlight=False), result["audit"]
    rows = [("claimed by the ledger", f"{audit['epsilon_claimed']:.4g}")]
    rows += [
        (f"at least, by {name}" if i == 0 else f"          by {name}", value)
        for i, (name, value) in enumerate(describe_bounds(audit))
    ]
    width = max(len(name) for name, _ in rows)
    console.print(f"epsilon at delta {audit['delta']:g}, {result['privacy']['neighbouring']}:")
    for name, value in rows:
        console.print(f"  {name:<{width}}  {value}", soft_wrap=True)
    if "mu_claimed" in audit:
        console.print(
            f"mu {audit['mu_claimed']:.4g} claimed, {audit['mu']:.4g} measured, "
            f"at least {audit['mu_lower']:.4g}"
        )
    sentence = audit_verdict(audit)
    console.print(sentence[0].upper() + sentence[1:] + ".")
    console.print(f"{effort(result)}, {result['time']['total_s']:.1f} s in all.")
    console.print(
        f"written to {folder}: result.json, audit.html, ledger.jsonl, config.yaml", soft_wrap=True
    )
