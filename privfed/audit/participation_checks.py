"""Check who takes part: by coins of the claimed probability that nobody knows, never by data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from flwr.common import parameters_to_ndarrays
from scipy.stats import binomtest

from privfed.algorithm.announcement import Announcement
from privfed.audit.guise import COHORT
from privfed.audit.neighbours import PLACE, own_data
from privfed.audit.noise_checks import RARE
from privfed.audit.replay import Theatre
from privfed.audit.transcript import Message, Transcript
from privfed.foundation.linalg import Array

THROWS = 120
"""Number of coins of one user that are looked at."""


def participation_findings(theatre: Theatre, base: Transcript) -> Iterator[str]:
    """Yield what is wrong with the coins of sampled steps, in words.

    Args:
        theatre: the experiment.
        base: the recorded run.
    """
    seen = set()
    for message in base.messages:
        if message.kind != "fit" or message.cid != COHORT:
            continue
        told = Announcement.from_config(message.ins.config)
        if told.sampling < 1 and told.task not in seen:
            seen.add(told.task)
            yield from _coins(theatre, message, told)


def _coins(theatre: Theatre, message: Message, told: Announcement) -> Iterator[str]:
    """Yield findings about one user's coins, seen in whether it sends anything."""
    cohort, _ = own_data(theatre)
    client = theatre.serving(cohort[np.array([PLACE])])
    shared = parameters_to_ndarrays(message.ins.parameters)

    def thrown(secret: bool) -> Array:
        answers = []
        for step in range(1, THROWS + 1):
            config = message.ins.config | {"step": told.step + step, "secret": secret}
            answers.append(any(np.any(array) for array in client.fit(shared, config)[0]))
        return np.array(answers)

    once, again, public = thrown(True), thrown(True), thrown(False)
    what = f"of the task {told.task!r}"
    for coins in (once, public):
        count = int(np.sum(coins))
        if binomtest(count, THROWS, told.sampling).pvalue < RARE:
            yield (
                f"a user takes part in {count} of {THROWS} steps {what}, "
                f"the ledger claims a probability of {told.sampling:g}"
            )
            return
    if np.array_equal(once, again) or np.array_equal(once, public):
        yield f"the secret coins {what} are no secret: they are the same when thrown again"
