"""Check the claims of the ledger by a grey-box replay; each violated claim is a finding in words.

sensitivity   no user moves a sum (or a selection's log-probabilities) further than the ledger says
ledger        passages through the gate = ledger entries = planned releases; a user pays in one
              group only
noise         noise has the claimed scale, is drawn anew for every release, and depends on no data
bypass        given the released values, nothing public depends on a user's data, or on which
              users answer
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import cast

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from omegaconf import DictConfig

from privfed.audit.hostile_users import Search, User, hostile, labels_of, moved
from privfed.audit.noise_checks import noise_findings
from privfed.audit.replay import COHORT, SINGLE, Guise, Theatre, with_data, without
from privfed.audit.transcript import Transcript, differences
from privfed.data.cohort import Cohort
from privfed.foundation.seeding import generator
from privfed.privacy.neighbouring import ADD_REMOVE, WEAK

PLACE = 1
"""Position in its cohort of the user that changes."""
SHARED = ("huge", "overflowing", "tiny", "aligned", "lopsided")
"""Names of hostile users whose features are shared by two weak neighbours."""
ROUNDING = 1e-9
"""Relative error of the comparison itself."""


@dataclass(frozen=True)
class Finding:
    """Claim that does not hold.

    Attributes:
        claim: sensitivity, ledger, noise or bypass.
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


def replay(cfg: DictConfig, tries: int = 150) -> Report:
    """Check everything that a configured experiment claims.

    Args:
        cfg: configuration of the experiment.
        tries: number of changes that each search for a worst user may make.

    Returns:
        All findings, and how near users came to the claimed sensitivities.
    """
    theatre = Theatre(cfg)
    budget = theatre.gate.ledger.budget
    base = theatre.play()
    report = Report(theatre.guarantee, budget.neighbouring, len(base.calls), 1)
    for failure in base.failures:
        report.found("bypass", failure)
    check_ledger(base, report)
    for words in noise_findings(base.calls, theatre.gate):
        report.found("noise", words)
    worst_case = theatre.guarantee == "worst-case"
    guises = [*honest_guises(theatre, base, tries), *(lying_guises() if worst_case else ())]
    plays: list[tuple[Guise, Transcript]] = []
    for guise in guises:
        plays.append((guise, theatre.play(guise, base.calls)))
        check_run(base, *plays[-1], report)
    report.runs += len(plays)
    for node, largest in ((COHORT, report.nearest), (SINGLE, report.lying)):
        here = [(guise, seen) for guise, seen in plays if guise.node == node]
        for one, other in neighbours(here, base, budget.neighbouring):
            compare(one, other, theatre.gate.source.repeatable, largest)
        for name, (ratio, who) in largest.items():
            if not ratio <= 1.0 + ROUNDING and not theatre.guarantee.startswith("under"):
                report.found(
                    "sensitivity",
                    f"neighbours move {name} by {ratio:.4g} times what the ledger claims",
                    who,
                )
    return report


def check_ledger(base: Transcript, report: Report) -> None:
    """Check that gate, ledger and plan have the same releases; add findings to `report`."""
    passed, written = ([(x.name, x.round) for x in what] for what in (base.calls, base.ledger))
    for (name, round), call in zip(passed, base.calls, strict=True):
        if call.entry is None:
            report.found(
                "ledger", f"{name} of round {round} passed the gate without an entry in the ledger"
            )
        elif (call.entry.name, call.entry.round, call.entry.size) != (name, round, call.total.size):
            report.found("ledger", f"{name} of round {round} is another release in the ledger")
    for what, list_ in (
        ("passages through the noise gate", passed),
        ("entries in the ledger", written),
    ):
        missing = [
            f"{name} of round {round}" for name, round in base.planned if (name, round) not in list_
        ]
        if missing:
            report.found("ledger", f"planned, but not among the {what}: {missing[0]}")
    if not len(passed) == len(written) == len(base.planned):
        counts = (
            f"{len(base.planned)} planned releases, {len(passed)} through the gate, "
            f"{len(written)} in the ledger"
        )
        report.found("ledger", f"{counts}: these should be the same")


def check_run(base: Transcript, guise: Guise, seen: Transcript, report: Report) -> None:
    """Check that, given the released values, nothing public depends on the guise.

    Args:
        base: the run without a guise.
        guise: what took the place of a user.
        seen: the run with the guise.
        report: gets the findings.
    """
    who = f"user {guise.name!r}" if guise.honest else f"node {guise.name!r}"
    if seen.stopped:
        report.found("bypass", "the run stops on some users' data", f"{who}: {seen.stopped}")
    for failure in seen.failures:
        report.found(
            "bypass",
            "a user's data make its node fail, and all users there with it",
            f"{who}: {failure}",
        )
    for what in () if seen.stopped else differences(base, seen, guise.honest):
        why = (
            "depends on data"
            if guise.honest
            else "depends on who answers, as a divisor that counts replies would"
        )
        report.found("bypass", f"{what} {why}, though all releases are the same", who)
    groups = set()
    for mine, theirs in zip(base.calls, seen.calls, strict=False):
        if mine.total.shape != theirs.total.shape:
            report.found("bypass", f"the size of {mine.name} depends on data", who)
        elif (
            mine.entry is not None
            and mine.entry.group is not None
            and not np.array_equal(mine.total, theirs.total)
        ):
            groups.add(mine.entry.group)
    if len(groups) > 1:
        report.found(
            "ledger",
            f"groups {sorted(groups)} are charged as disjoint, but one user is in each of them",
            who,
        )


Named = tuple[str, Transcript]
"""Run, with a name for what takes the user's place."""


def neighbours(
    plays: list[tuple[Guise, Transcript]], base: Transcript, relation: str
) -> Iterator[tuple[Named, Named]]:
    """Yield pairs of runs whose data sets are neighbours.

    Args:
        plays: runs in which the same user changes.
        base: the run without a change.
        relation: neighbouring relation.
    """
    if relation == ADD_REMOVE:
        gone = [("absent", seen) for guise, seen in plays if guise.absent]
        there = [(guise.name, seen) for guise, seen in plays if not guise.absent]
        yield from product([("itself", base), *there], gone)
        return
    families: dict[str, list[Named]] = {"": [("itself", base)]}
    for guise, seen in plays:
        if not guise.absent:
            families.setdefault(guise.family, []).append((guise.name, seen))
    for family in families.values():
        yield from combinations(family, 2)


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


def honest_guises(theatre: Theatre, base: Transcript, tries: int) -> Iterator[Guise]:
    """Yield guises of an honest node: the user absent, or with other data.

    Other data are hostile ones and those that a search finds; under an assumption on the data, they
    are those of other users.

    Args:
        theatre: the experiment.
        base: the run without a guise.
        tries: number of changes that each search may make.
    """
    data, relation = theatre.experiment.data, theatre.gate.ledger.budget.neighbouring
    users = theatre.roster.nodes[COHORT]
    cohort = cast(Cohort, data.cohort(users.start, users.stop))
    own: User = (cohort.X[PLACE].astype(np.float64), cohort.y[PLACE].astype(np.float64))

    def guise(name: str, user: User, family: str = "") -> Guise:
        return Guise(name, family=family, cohort=lambda cohort: with_data(cohort, PLACE, *user))

    yield Guise("absent", cohort=lambda cohort: without(cohort, PLACE), absent=True)
    if theatre.guarantee != "worst-case":
        yield from (
            guise(f"like user {i}", (cohort.X[i], cohort.y[i]))
            for i in range(len(cohort))
            if i != PLACE
        )
        return
    labels = labels_of(data)
    strange = hostile(generator(theatre.cfg.seed, "strange users"), data.m, data.d, labels)
    search = Search(theatre, base, users.start + PLACE, tries, labels, cohort.X.dtype)
    found = list(search.pairs(own, relation == WEAK, relation == ADD_REMOVE))
    if relation == WEAK:
        for name, (X, y) in {"itself": own, **{name: strange[name] for name in SHARED}}.items():
            family = "" if name == "itself" else name
            yield from (
                guise(f"{name}, {words}", (X, a * y), family)
                for words, a in (("as is", 1), ("-y", -1), ("1e9 y", 1e9))
            )
    else:
        yield from (guise(name, user) for name, user in strange.items())
    for i, (name, first, second) in enumerate(found):
        family = f"found {i}" if relation == WEAK else ""
        yield guise(f"found for {name}", first, family)
        if second is not first:
            yield guise(f"found against {name}", second, family)


def lying_guises() -> Iterator[Guise]:
    """Yield guises of a node with one user that is silent, or sends what no honest client would."""

    def lie(name: str, answer) -> Guise:  # type: ignore[no-untyped-def]
        def reply(honest: FitRes) -> FitRes:
            arrays = [answer(array) for array in parameters_to_ndarrays(honest.parameters)]
            return FitRes(
                Status(Code.OK, ""),
                ndarrays_to_parameters(arrays),
                honest.num_examples,
                honest.metrics,
            )

        return Guise(name, SINGLE, reply=reply, honest=False)

    yield Guise("silent", SINGLE, reply=lambda honest: None, absent=True, honest=False)
    yield lie("sends 1e30", lambda array: np.full(array.shape, 1e30))
    yield lie("sends -1e300", lambda array: np.full(array.shape, -1e300))
    yield lie(
        "is all for the first number",
        lambda array: 1e30 * (np.arange(array.size) == 0).reshape(array.shape),
    )
    yield lie(
        "is all against the first number",
        lambda array: 1e30 * (np.arange(array.size) > 0).reshape(array.shape),
    )
    yield lie("sends NaN", lambda array: np.full(array.shape, np.nan))
    yield lie("sends another shape", lambda array: np.full(array.size + 1, 1e30))
    yield lie("sends half precision", lambda array: np.full(array.shape, 6e4, dtype=np.float16))
    many = Guise(
        "claims a billion examples",
        SINGLE,
        reply=lambda honest: replace(honest, num_examples=10**9),
        honest=False,
    )
    yield many
