"""Whether what the ledger claims is what happens: every check of a grey-box replay, each with what it finds in words.

sensitivity   no user, however strange, moves a sum (a selection's log-probabilities) further than the ledger says
ledger        passages through the gate = ledger entries = planned releases; a user pays in one group only
noise         noise has the claimed scale, is drawn anew for every release, and depends on no data
bypass        with the released values given, nothing public depends on a user's data, nor on who answers
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
"""Where the user who changes stands in its cohort."""
SHARED = ("huge", "overflowing", "tiny", "aligned", "lopsided")
"""Strange users whose features two weak neighbours share."""
ROUNDING = 1e-9
"""Relative error of the comparison itself."""


@dataclass(frozen=True)
class Finding:
    """A claim that does not hold. claim: sensitivity, ledger, noise or bypass."""

    claim: str
    words: str


@dataclass
class Report:
    """What a replay found: how near users came to what is claimed, by name of the release, and what is wrong."""

    guarantee: str
    neighbouring: str
    releases: int = 0
    runs: int = 0
    nearest: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Largest distance of neighbours as a part of the claimed sensitivity (or epsilon), and who they were: honest nodes."""
    lying: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The same where the node of a single user lies."""
    findings: list[Finding] = field(default_factory=list)

    def found(self, claim: str, words: str, example: str = "") -> None:
        """Note a finding, once, with the first example of it."""
        if not any(
            finding.claim == claim and finding.words.startswith(words) for finding in self.findings
        ):
            self.findings.append(Finding(claim, f"{words} ({example})" if example else words))


def replay(cfg: DictConfig, tries: int = 150) -> Report:
    """Check everything that a configured experiment claims. tries: changes that each search for a worst user may make."""
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
    """Passages through the gate, entries of the ledger and the plan are the same releases."""
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
        counts = f"{len(base.planned)} planned releases, {len(passed)} through the gate, {len(written)} in the ledger"
        report.found("ledger", f"{counts}: these should be the same")


def check_run(base: Transcript, guise: Guise, seen: Transcript, report: Report) -> None:
    """With the released values given, nothing public tells the guise from the user."""
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
"""A run, with a name for what stands in the user's place."""


def neighbours(
    plays: list[tuple[Guise, Transcript]], base: Transcript, relation: str
) -> Iterator[tuple[Named, Named]]:
    """Pairs of runs whose data sets are neighbours, out of those where the same user changes."""
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
    """How far apart the two runs' totals are, as a part of what the ledger claims; keeps the largest by name of the release."""
    for mine, theirs in zip(one[1].calls, other[1].calls, strict=False):
        if mine.entry is None or mine.total.shape != theirs.total.shape:
            continue
        ratio = moved(mine.entry, mine.total, theirs.total)
        if (
            repeatable and mine.made.ndim
        ):  # the gate's rounding to its grid is part of what the ledger claims
            ratio = max(ratio, moved(mine.entry, mine.made, theirs.made))
        if not ratio <= largest.get(mine.name, (-1.0, ""))[0]:
            largest[mine.name] = (ratio, f"{one[0]} / {other[0]}")


def honest_guises(theatre: Theatre, base: Transcript, tries: int) -> Iterator[Guise]:
    """The user absent, and with other data: strange ones and those a search finds; under an assumption, other users' data."""
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
    """A node of one user that is silent, or answers what no honest client would."""

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
