"""Check the claims of the ledger by a grey-box replay; each violated claim is a finding in words.

sensitivity   no user moves a sum (or a selection's log-probabilities) further than the ledger says
ledger        passages through the gate = ledger entries = planned releases; a user pays in one
              group only
noise         noise has the claimed scale, is drawn anew for every release, and depends on no data
bypass        given the released values, nothing public depends on a user's data, or on which
              users answer, or on any sum before noise; nodes send what was asked for and no more
robustness    no user and no plan makes a run fail
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from omegaconf import DictConfig
from threadpoolctl import threadpool_limits

from privfed.audit.accounting_checks import accounting_findings
from privfed.audit.guise import COHORT, EVERYBODY, SINGLE, USUAL, Guise
from privfed.audit.hostile_users import moved
from privfed.audit.named_people import NamedTheatre, named_guises
from privfed.audit.neighbours import (
    Found,
    Named,
    honest_guises,
    lying_guises,
    neighbours,
    puppet_guises,
    search_for_users,
)
from privfed.audit.noise_checks import dependence_findings, noise_findings
from privfed.audit.participation_checks import participation_findings
from privfed.audit.replay import Theatre
from privfed.audit.reply_checks import reply_findings
from privfed.audit.resumption_checks import resumption_findings
from privfed.audit.transcript import Transcript, differences
from privfed.config.composition import TABLE
from privfed.foundation.errors import RefutedError

ROUNDING = 1e-9
"""Relative error of the comparison itself."""


@dataclass(frozen=True)
class Finding:
    """Claim that does not hold.

    Attributes:
        claim: sensitivity, ledger, noise, bypass or robustness.
        words: what is wrong.
    """

    claim: str
    words: str


@dataclass
class Report:
    """Result of a replay.

    Attributes:
        guarantee: guarantee of the audited algorithm.
        neighbouring: neighbouring relation.
        releases: number of releases per run.
        runs: number of runs.
        nearest: by name of the release, the largest distance of neighbours on honest nodes, as a
            fraction of the claimed sensitivity (or epsilon), and who the neighbours were.
        lying: the same for the node of a single user that lies.
        findings: claims that do not hold.
    """

    guarantee: str
    neighbouring: str
    releases: int = 0
    runs: int = 0
    nearest: dict[str, tuple[float, str]] = field(default_factory=dict)
    lying: dict[str, tuple[float, str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def found(self, claim: str, words: str, example: str = "") -> None:
        """Add a finding unless it is known already.

        Args:
            claim: claim that does not hold.
            words: what is wrong.
            example: first example of it.
        """
        if not any(
            finding.claim == claim and finding.words.startswith(words) for finding in self.findings
        ):
            self.findings.append(Finding(claim, f"{words} ({example})" if example else words))

    def collect(self, claim: str, findings: Iterator[str]) -> None:
        """Add all findings of a check. A check that the code under test makes fail is one, too."""
        try:
            for words in findings:
                self.found(claim, words)
        except Exception as error:
            words = f"checking the {claim} fails"
            self.found("robustness", words, f"{type(error).__name__}: {error}")


def replay(cfg: DictConfig, tries: int = 150) -> Report:
    """Check everything that a configured experiment claims.

    Args:
        cfg: configuration of the experiment.
        tries: number of changes that each search for a worst user may make.

    Returns:
        All findings, and how near users came to the claimed sensitivities.
    """
    with threadpool_limits(1):
        return replay_named(cfg) if cfg.data.kind == TABLE else replay_numbered(cfg, tries)


def replay_numbered(cfg: DictConfig, tries: int) -> Report:
    """Check what an experiment on simulated users claims; see :func:`replay`."""
    theatre = Theatre(cfg)
    base, report = first_run(theatre)
    if base.stopped:
        return report
    report.collect("ledger", participation_findings(theatre, base))
    report.collect("ledger", resumption_findings(theatre))
    found: Found = []
    try:
        found = search_for_users(theatre, base, tries) if worst_case(theatre) else []
    except RefutedError as error:
        report.found("bypass", str(error))
    except Exception as error:
        words = "a client fails on some user's data"
        report.found("robustness", words, f"{type(error).__name__}: {error}")
    guises = list(honest_guises(theatre, found))
    if worst_case(theatre):
        guises += [*puppet_guises(), *lying_guises()]
    examine(theatre, base, guises, report)
    return report


def replay_named(cfg: DictConfig) -> Report:
    """Check what an experiment on tables claims, on a made-up table of named people.

    Args:
        cfg: configuration with data=table and without a file.
    """
    with TemporaryDirectory() as folder:
        theatre = NamedTheatre(cfg, Path(folder))
        base, report = first_run(theatre)
        if not base.stopped:
            same = [guise for guise in named_guises() if guise.family]
            for guise in same:
                seen = theatre.play(guise, base.calls)
                check_public(base, guise, seen, report)
                check_same(base, guise, seen, report)
            others = [guise for guise in named_guises() if not guise.family]
            examine(theatre, base, [*others, *puppet_guises()], report)
            report.runs += len(same)
    return report


def first_run(theatre: Theatre) -> tuple[Transcript, Report]:
    """Run without a guise, and check everything that one run shows.

    Args:
        theatre: the experiment.

    Returns:
        The run, and a report with what was found so far.
    """
    budget = theatre.gate.ledger.budget
    base = theatre.play()
    report = Report(theatre.guarantee, budget.neighbouring, len(base.calls), 1)
    for failure in base.failures:
        report.found("bypass", failure)
    if base.stopped:
        report.found("robustness", "the run on the configured data fails", base.stopped)
        return base, report
    report.collect("ledger", accounting_findings(base, budget))
    report.collect("noise", noise_findings(base.calls, theatre.gate))
    report.collect("bypass", reply_findings(base.replies))
    return base, report


def worst_case(theatre: Theatre) -> bool:
    """Return whether the guarantee holds for any data."""
    return theatre.guarantee == "worst-case"


def examine(theatre: Theatre, base: Transcript, guises: list[Guise], report: Report) -> None:
    """Play all guises, and compare what they show; add findings to `report`.

    Args:
        theatre: the experiment.
        base: the run without a guise.
        guises: what takes the place of a user; the first of each other surroundings changes nobody.
        report: gets the findings.
    """
    bases = {USUAL: base}
    plays: list[tuple[Guise, Transcript]] = []
    for guise in guises:
        seen = theatre.play(guise, base.calls)
        report.runs += 1
        check_public(base, guise, seen, report)
        if theatre.gate.source.repeatable:
            for words in dependence_findings(base, seen):
                report.found("noise", words, guise.name)
        if guise.node == "":
            bases[guise.surroundings] = seen
        elif guise.node != EVERYBODY:
            check_groups(bases[guise.surroundings], guise, seen, report)
            plays.append((guise, seen))
    for node, largest in ((COHORT, report.nearest), (SINGLE, report.lying)):
        here = [(guise, seen) for guise, seen in plays if guise.node == node]
        for one, other in neighbours(here, bases, report.neighbouring):
            compare(one, other, theatre.gate.source.repeatable, largest)
        for name, (ratio, who) in largest.items():
            if not ratio <= 1.0 + ROUNDING and not theatre.guarantee.startswith("under"):
                report.found(
                    "sensitivity",
                    f"neighbours move {name} by {ratio:.4g} times what the ledger claims",
                    who,
                )


def check_public(base: Transcript, guise: Guise, seen: Transcript, report: Report) -> None:
    """Check that, given the released values, nothing public depends on the guise.

    Args:
        base: the run without a guise.
        guise: what took the place of a user.
        seen: the run with the guise.
        report: gets the findings.
    """
    puppets = guise.node == EVERYBODY
    who = f"user {guise.name!r}" if guise.honest else f"node {guise.name!r}"
    who = guise.name if puppets or guise.node == "" else who
    if seen.stopped:
        report.found("bypass", "the run stops on some users' data", f"{who}: {seen.stopped}")
    for failure in seen.failures:
        report.found(
            "bypass",
            "a user's data make its node fail, and all users there with it",
            f"{who}: {failure}",
        )
    for words in reply_findings(seen.replies):
        report.found("bypass", words)
    honest = guise.honest and not puppets  # puppets' clients log nothing
    for what in () if seen.stopped else differences(base, seen, honest):
        why = "depends on data"
        if puppets:
            why = "depends on sums before noise"
        elif not guise.honest:
            why = "depends on who answers, as a divisor that counts replies would"
        report.found("bypass", f"{what} {why}, though all releases are the same", who)
    for mine, theirs in zip(base.calls, seen.calls, strict=False):
        if mine.total.shape != theirs.total.shape:
            report.found("bypass", f"the size of {mine.name} depends on data", who)


def check_same(base: Transcript, guise: Guise, seen: Transcript, report: Report) -> None:
    """Check that sums are the same, up to rounding: the data sets differ in their order only."""
    for mine, theirs in zip(base.calls, seen.calls, strict=False):
        if mine.entry is None or mine.total.shape != theirs.total.shape:
            continue
        if not moved(mine.entry, mine.total, theirs.total) <= ROUNDING:
            report.found("sensitivity", f"the order of users moves {mine.name}", guise.name)


def check_groups(base: Transcript, guise: Guise, seen: Transcript, report: Report) -> None:
    """Check that a user moves the sums of one group only, if groups are charged as disjoint."""
    groups = {
        mine.entry.group
        for mine, theirs in zip(base.calls, seen.calls, strict=False)
        if mine.entry is not None
        and mine.entry.group is not None
        and mine.total.shape == theirs.total.shape
        and not np.array_equal(mine.total, theirs.total)
    }
    if len(groups) > 1:
        report.found(
            "ledger",
            f"groups {sorted(groups)} are charged as disjoint, but one user is in each of them",
            guise.name,
        )


def compare(
    one: Named, other: Named, repeatable: bool, largest: dict[str, tuple[float, str]]
) -> None:
    """Compare the totals of two runs, as a fraction of what the ledger claims.

    Args:
        one: run.
        other: run on a neighbouring data set.
        repeatable: whether both runs have the same noise.
        largest: largest fraction by name of the release, with the two names; is updated.
    """
    for mine, theirs in zip(one[1].calls, other[1].calls, strict=False):
        if mine.entry is None or mine.total.shape != theirs.total.shape:
            continue
        ratio = moved(mine.entry, mine.total, theirs.total)
        # The ledger's claim includes the gate's rounding to its grid.
        if repeatable and mine.made.ndim:
            ratio = max(ratio, moved(mine.entry, mine.made, theirs.made))
        if not ratio <= largest.get(mine.name, (-1.0, ""))[0]:
            largest[mine.name] = (ratio, f"{one[0]} / {other[0]}")
