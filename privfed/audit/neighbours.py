"""Who takes part in a replay: users in other guises, on several data sets, and their neighbours.

honest    one user of a node that runs the real client has other data, or is absent. It is played at
          several places of its cohort, and among users whose parts are all clipped or all zero
lying     a node of one user is silent, or sends what no honest client would
puppets   all nodes send sums that have nothing to do with any data
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any, cast

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from numpy.typing import NDArray

from privfed.audit.guise import (
    COHORT,
    EVERYBODY,
    SINGLE,
    USUAL,
    Asked,
    Guise,
    floating,
    with_data,
    without,
)
from privfed.audit.hostile_users import Search, User, hostile, labels_of
from privfed.audit.replay import Theatre
from privfed.audit.transcript import Transcript
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.neighbouring import WEAK, ZERO_OUT

PLACE = 1
"""Position in its cohort of the user that changes."""
PLACES = (63, 64, -1)
"""Further positions: at the edges of blocks of users, and the last one."""
SHARED = ("huge", "overflowing", "tiny", "aligned", "lopsided")
"""Names of hostile users whose features are shared by two weak neighbours."""
ELSEWHERE = ("huge", "zero")
"""Names of hostile users that are played at several places and among several crowds."""
HUGE = 1e30
"""Size of what a lying node sends; far beyond every clip norm."""

Change = Callable[[Cohort], Cohort]
Found = list[tuple[str, User, User]]
"""Pairs of users that a search found, with the name of the release."""


def surroundings_of(labels: Array | None) -> dict[str, Change]:
    """Return by name how the data of all users are changed.

    Among loud users every part is clipped. Among quiet users sums are zero, so that whatever is
    decided by the size of a sum is decided by one user.

    Args:
        labels: allowed targets; None means any number.
    """

    def loud(cohort: Cohort) -> Cohort:
        if labels is None:
            return replace(cohort, y=1e6 * cohort.y)
        return replace(cohort, X=1e3 * cohort.X.astype(floating(cohort.X.dtype)))

    def quiet(cohort: Cohort) -> Cohort:
        return replace(cohort, X=np.zeros_like(cohort.X), y=np.zeros_like(cohort.y))

    return {"loud users": loud, "quiet users": quiet}


def own_data(theatre: Theatre) -> tuple[Cohort, User]:
    """Return the cohort of the node whose user changes, and the data of that user."""
    users = theatre.roster.nodes[COHORT]
    cohort = cast(Cohort, theatre.experiment.data.cohort(users.start, users.stop))
    return cohort, (cohort.X[PLACE].astype(np.float64), cohort.y[PLACE].astype(np.float64))


def search_for_users(theatre: Theatre, base: Transcript, tries: int) -> Found:
    """Return pairs of users who move each kind of release far.

    Args:
        theatre: the experiment.
        base: the recorded run.
        tries: number of changes that each search may make.

    Raises:
        RefutedError: if whether a user takes part depends on its data.
    """
    relation = theatre.gate.ledger.budget.neighbouring
    cohort, own = own_data(theatre)
    number = theatre.roster.nodes[COHORT].start + PLACE
    labels = labels_of(theatre.experiment.data)
    search = Search(theatre, base, number, tries, labels, cohort.X.dtype)
    return list(search.pairs(own, relation == WEAK, relation == ZERO_OUT))


def honest_guises(theatre: Theatre, found: Found) -> Iterator[Guise]:
    """Yield guises of an honest node: the user absent, or with other data.

    Other data are hostile ones and those that a search found; under an assumption on the data, they
    are those of other users.

    Args:
        theatre: the experiment.
        found: pairs of users that a search found.
    """
    data, relation = theatre.experiment.data, theatre.gate.ledger.budget.neighbouring
    cohort, own = own_data(theatre)

    def guise(name: str, user: User, family: str = "", place: int = PLACE) -> Guise:
        return Guise(
            name,
            place=place,
            family=family,
            cohort=lambda cohort: with_data(cohort, place, *user),
        )

    def absent(place: int) -> Guise:
        return Guise("absent", place=place, cohort=lambda c: without(c, place), absent=True)

    yield absent(PLACE)
    if theatre.guarantee != "worst-case":
        yield from (
            guise(f"like user {i}", (cohort.X[i], cohort.y[i]))
            for i in range(min(len(cohort), 24))
            if i != PLACE
        )
        return
    labels = labels_of(data)
    strange = hostile(generator(theatre.cfg.seed, "strange users"), data.m, data.d, labels)
    if relation == WEAK:
        for name, (X, y) in {"itself": own, **{name: strange[name] for name in SHARED}}.items():
            family = "" if name == "itself" else name
            yield from (
                guise(f"{name}, {words}", (X, a * y), family)
                for words, a in (("as is", 1), ("-y", -1), ("1e9 y", 1e9))
            )
    else:
        yield from (guise(name, user) for name, user in strange.items())
    people: list[tuple[str, User, str]] = []
    for i, (name, first, second) in enumerate(found):
        family = f"found {i}" if relation == WEAK else ""
        people.append((f"found for {name}", first, family))
        if second is not first:
            people.append((f"found against {name}", second, family))
    yield from (guise(*person) for person in people)
    if relation == WEAK:
        return
    people = people[-2:] + [(name, strange[name], "") for name in ELSEWHERE]
    for place in sorted({place % len(cohort) for place in PLACES if place < len(cohort)}):
        yield absent(place)
        yield from (guise(*person, place=place) for person in people)
    for name, others in surroundings_of(labels).items():
        yield Guise("itself", node="", surroundings=name, others=others)
        for one in (absent(PLACE), *(guise(*person) for person in people)):
            yield replace(one, surroundings=name, others=others)


def lying_guises() -> Iterator[Guise]:
    """Yield guises of a node with one user that is silent, or sends what no honest client would."""

    def lie(
        name: str, answer: Callable[[Array], NDArray[Any]], examples: int | None = None
    ) -> Guise:
        def reply(honest: FitRes) -> FitRes:
            arrays = [answer(array) for array in parameters_to_ndarrays(honest.parameters)]
            return FitRes(
                Status(Code.OK, ""),
                ndarrays_to_parameters(arrays),
                honest.num_examples if examples is None else examples,
                honest.metrics,
            )

        return Guise(name, SINGLE, reply=reply, honest=False)

    yield Guise("silent", SINGLE, reply=lambda honest: None, absent=True, honest=False)
    yield lie("sends 1e30", lambda array: np.full(array.shape, HUGE))
    yield lie("sends -1e300", lambda array: np.full(array.shape, -1e300))
    yield lie(
        "is all for the first number",
        lambda array: np.where(np.arange(array.size) == 0, HUGE, 0.0).reshape(array.shape),
    )
    yield lie(
        "is all against the first number",
        lambda array: np.where(np.arange(array.size) > 0, HUGE, 0.0).reshape(array.shape),
    )
    yield lie("sends NaN", lambda array: np.full(array.shape, np.nan))
    yield lie("sends another shape", lambda array: np.full(array.size + 1, HUGE))
    yield lie("sends half precision", lambda array: np.full(array.shape, 6e4, dtype=np.float16))
    yield lie("claims a billion examples", lambda array: array, 10**9)
    yield lie(
        "sends 1e30 and claims a billion examples",
        lambda array: np.full(array.shape, HUGE),
        10**9,
    )


def puppet_guises() -> Iterator[Guise]:
    """Yield runs in which all nodes send sums that have nothing to do with data.

    The gate returns the values of the first run. So nothing public may change, however large or
    small the sums are and however they change from step to step.
    """

    def puppets(name: str, size: Callable[[int], float], random: bool = False) -> Guise:
        def puppet(asked: Asked) -> list[Array]:
            arrays = []
            for i, (shape, bound) in enumerate(zip(asked.shapes, asked.bounds, strict=True)):
                rng = generator(0, "puppets", asked.step if random else 0, i)
                array = rng.standard_normal(shape)
                length = float(np.linalg.norm(array)) or 1.0
                arrays.append(size(asked.step) * asked.users * bound / length * array)
            return arrays

        return Guise(name, EVERYBODY, puppet=puppet)

    yield puppets("all nodes send zeros", lambda step: 0.0)
    yield puppets("all nodes send as much as they may", lambda step: 0.99)
    yield puppets("all nodes send more than they may", lambda step: 1e9, random=True)
    yield puppets("all nodes change sides in every step", lambda step: (-1.0) ** step)
    yield puppets("sums fade", lambda step: 10.0**-step)
    yield puppets("sums grow", lambda step: 1e-9 * 10.0**step)
    yield puppets("sums are tiny and random", lambda step: 1e-6, random=True)


Named = tuple[str, Transcript]
"""Run, with a name for what takes the user's place."""


def neighbours(
    plays: list[tuple[Guise, Transcript]], bases: dict[str, Transcript], relation: str
) -> Iterator[tuple[Named, Named]]:
    """Yield pairs of runs whose data sets are neighbours.

    Args:
        plays: runs in which one user changes.
        bases: runs without a change, by the name of the surroundings.
        relation: neighbouring relation.
    """
    kinds: dict[tuple[str, str, int, str], list[tuple[Guise, Transcript]]] = {}
    for guise, seen in plays:
        family = "" if relation == ZERO_OUT else guise.family
        kinds.setdefault((guise.node, guise.surroundings, guise.place, family), []).append(
            (guise, seen)
        )
    for (_, surroundings, place, family), members in kinds.items():
        where = "" if place in (0, PLACE) else f" at place {place}"
        where += "" if surroundings == USUAL else f" among {surroundings}"
        there = [(f"{guise.name}{where}", seen) for guise, seen in members if not guise.absent]
        if not family:
            there.insert(0, ("itself", bases[surroundings]))
        if relation == ZERO_OUT:
            gone = [("absent", seen) for guise, seen in members if guise.absent]
            yield from product(there, gone)
        else:
            yield from combinations(there, 2)
