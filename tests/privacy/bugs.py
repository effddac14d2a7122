"""Bugs that break the guarantee, each with who must catch it.

FIRST is the list that the checkers were built with. SECOND was planted by people who attacked the
result, and OWN came after it. A new kind of mistake belongs here: how it is planted
(`planted/`), the settings at which it shows, and who refutes it.

`python scripts/planted_bugs.py` plays every bug against every checker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from planted import client_bugs as client
from planted import mechanism_bugs as mechanism
from planted import server_bugs as server

FIRST, SECOND, OWN = "first", "second", "own"
REPLAY, NAMED, AUDIT, ONE_RUN, TESTS = "replay", "replay of a table", "audit", "one run", "tests"
SMALL = ("data.n=200", "data.d=5", "data.m=6", "rounds=2", "eps=4")
"""More users than fit a vector or a small block; few features and rounds."""
ALTMIN = ("algo=altmin",)
MEASURED = ("privacy.clip=auto", "eps=100")
"""With so little noise the private clip norms are of the data's size."""
SAMPLED = (
    "algo=fedavg_ft",
    "model=mlp",
    "data.n=24",
    "data.size=4",
    "data.m=4",
    "data.classes=4",
    "model.module.hidden=[4]",
    "algo.sampling=0.5",
)
CHOICES = ("algo=expmech", "algo.candidates=20")


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: what is wrong, in a few words.
        plant: makes a context in which the real code has the bug.
        list: FIRST, SECOND or OWN.
        claim: claim that the checker refutes, where it is a replay.
        words: part of what the checker says.
        settings: settings at which the bug shows, besides SMALL.
        caught_by: checker that must catch it: REPLAY, NAMED, AUDIT, or the name of a test.
    """

    name: str
    plant: Callable[[], AbstractContextManager[None]]
    list: str
    claim: str = ""
    words: str = ""
    settings: tuple[str, ...] = ()
    caught_by: str = REPLAY

    @property
    def line(self) -> list[str]:
        """All settings, without those of SMALL that do not fit the algorithm."""
        images = any(setting.startswith("data.size") for setting in self.settings)
        given = {setting.partition("=")[0] for setting in self.settings}
        base = ("rounds=2", "eps=4") if images or self.caught_by == NAMED else SMALL
        return [s for s in base if s.partition("=")[0] not in given] + list(self.settings)


LIST = [
    Bug("halved noise", mechanism.halved_noise, FIRST, "noise", "times the claimed standard"),
    Bug("no clip at the user", client.missing_clip, FIRST, "sensitivity", "neighbours move"),
    Bug("no clip at the server", server.missing_server_clip, FIRST, "sensitivity", "sends -1e300"),
    Bug("psi instead of 2 psi", mechanism.psi_for_two_psi, FIRST, "sensitivity", "gradient"),
    Bug(
        "uncharged initialiser",
        server.uncharged_initialiser,
        FIRST,
        "ledger",
        "planned, but not among the entries in the ledger: spectral",
    ),
    Bug("users weighted by examples", client.weighting_by_examples, FIRST, "sensitivity", "move"),
    Bug("nodes weighted by reports", server.weighting_by_reports, FIRST, "sensitivity", "billion"),
    Bug(
        "noise used again in every round",
        mechanism.reused_noise,
        FIRST,
        "noise",
        "noise is used again: gradient of round 2 has that of gradient of round 1",
    ),
    Bug("divisor of replies", server.divisor_of_replies, FIRST, "bypass", "depends on who answers"),
    Bug("heads in the metrics of one task", client.heads_in_metrics, SECOND, "bypass", "'heads'"),
    Bug(
        "no clip in blocks of 64 users or more",
        client.no_clip_in_large_blocks,
        SECOND,
        "sensitivity",
        "neighbours move",
    ),
    Bug(
        "early stopping on the sum before noise",
        server.early_stopping,
        SECOND,
        "bypass",
        "before noise",
    ),
    Bug(
        "groups do not pay the common part",
        mechanism.groups_pay_for_themselves_only,
        SECOND,
        "ledger",
        "cost at least epsilon",
        ALTMIN,
    ),
    Bug(
        "secret noise with a fixed seed",
        mechanism.secret_noise_with_a_fixed_seed,
        SECOND,
        "noise",
        "two processes draw the same noise",
    ),
    Bug(
        "noise scaled by the sum",
        mechanism.noise_scaled_by_the_sum,
        SECOND,
        "noise",
        "depends on the sum",
    ),
    Bug(
        "uncharged measurement of norms",
        server.uncharged_measurement,
        SECOND,
        "ledger",
        "planned, but not among the passages",
        MEASURED,
    ),
    Bug("groups drawn from data", client.groups_from_data, SECOND, "ledger", "as disjoint", ALTMIN),
    Bug(
        "ledger written after the release",
        mechanism.ledger_after_the_release,
        SECOND,
        "ledger",
        "before the ledger has the release",
    ),
    Bug("clip per example", client.clip_per_example, SECOND, "sensitivity", "move gradient"),
    Bug("clip by value", client.clip_by_value, SECOND, "sensitivity", "move gradient"),
    Bug(
        "users at the edge of a block count twice",
        client.overlapping_blocks,
        SECOND,
        "sensitivity",
        "at place 63",
    ),
    Bug(
        "users weighted by their number of rows",
        client.weighting_by_rows,
        SECOND,
        "sensitivity",
        "move gradient",
        ("data=table", "eps=500"),
        caught_by=NAMED,
    ),
    Bug(
        "step size from the sum before noise",
        server.step_size_from_the_sum,
        SECOND,
        "bypass",
        "though all releases are the same",
    ),
    Bug(
        "histogram counts all bins below",
        client.histogram_of_all_bins_below,
        SECOND,
        "sensitivity",
        "clip norm",
        MEASURED,
    ),
    Bug(
        "candidates drawn around the best",
        server.candidates_from_data,
        SECOND,
        "bypass",
        "though all releases are the same",
        CHOICES,
    ),
    Bug(
        "coins known to the server",
        client.coins_known_to_the_server,
        SECOND,
        "ledger",
        "are no secret",
        SAMPLED,
    ),
    Bug(
        "everybody takes part in samples",
        client.everybody_in_every_sample,
        SECOND,
        "ledger",
        "claims a probability of 0.5",
        SAMPLED,
    ),
    Bug(
        "everybody takes part in every group",
        client.everybody_in_every_group,
        SECOND,
        "ledger",
        "are charged as disjoint",
        ALTMIN,
    ),
    Bug(
        "resumed step is released again",
        server.resumed_step_released_again,
        SECOND,
        "ledger",
        "twice",
        ("privacy.noise=discrete",),
    ),
    Bug(
        "server's clip believes reported sizes",
        server.bounded_by_reports,
        SECOND,
        "sensitivity",
        "billion",
    ),
    Bug("NaN let through", client.broken_users_let_through, SECOND, "bypass", "depends on data"),
    Bug("norms of users in the log", client.norms_in_the_log, OWN, "bypass", "logged or printed"),
    Bug("clip factors have a floor", client.floor_of_clip_factors, OWN, "sensitivity", "move"),
    Bug(
        "clip by the largest norm of the block",
        client.clip_by_the_largest_norm,
        OWN,
        "sensitivity",
        "move",
    ),
    Bug("users' state is sent along", client.state_sent_along, OWN, "bypass", "2 arrays"),
    Bug("rows as number of examples", client.rows_as_examples, OWN, "bypass", "examples"),
    Bug("errors of real users", client.errors_of_real_users, OWN, "bypass", "how well it does"),
    Bug("columns scaled by the node's rows", client.scaled_by_the_node, OWN, "sensitivity", "move"),
    Bug(
        "batches drawn by place in the cohort",
        client.randomness_by_place,
        OWN,
        "sensitivity",
        "move gradient",
        ("algo.estimator=two-batches", "neighbouring=zero-out"),
    ),
    Bug(
        "people known by their place among the names",
        client.identities_by_rank,
        OWN,
        "sensitivity",
        "first name",
        ("data=table", "eps=500"),
        caught_by=NAMED,
    ),
    Bug("late answers count twice", server.answers_of_other_steps, OWN, "sensitivity", "move"),
    Bug(
        "length of the sum is announced",
        server.sums_in_the_announcement,
        OWN,
        "bypass",
        "is told in step",
    ),
    Bug(
        "clip norms measured without noise",
        server.measurement_without_noise,
        OWN,
        "ledger",
        "planned, but not among the passages",
        MEASURED,
    ),
    Bug(
        "every name is charged once",
        mechanism.every_name_charged_once,
        OWN,
        "ledger",
        "without an entry",
    ),
    Bug("sensitivity of the mean", mechanism.sensitivity_of_the_mean, OWN, "sensitivity", "move"),
    Bug(
        "sums of a step share their noise",
        mechanism.sums_of_a_step_share_their_noise,
        OWN,
        "noise",
        "noise is used again",
        ALTMIN,
    ),
    Bug(
        "last coordinate without noise",
        mechanism.last_coordinate_without_noise,
        OWN,
        "noise",
        "in coordinate",
    ),
    Bug(
        "one draw for all coordinates",
        mechanism.one_draw_for_all_coordinates,
        OWN,
        "noise",
        "noise of gradient",
    ),
    Bug(
        "noise in floating point", mechanism.noise_in_floating_point, OWN, "noise", "not on a grid"
    ),
    Bug(
        "epsilon stated at another delta",
        mechanism.epsilon_at_another_delta,
        OWN,
        "ledger",
        "cost at least epsilon",
    ),
    Bug(
        "budget is never refused",
        mechanism.budget_never_refuses,
        OWN,
        "ledger",
        "goes on releasing",
    ),
    Bug(
        "one name and round released twice",
        mechanism.released_twice_under_one_name,
        OWN,
        "ledger",
        "same name and round twice",
    ),
    Bug(
        "best candidate is always chosen",
        mechanism.best_candidate_always,
        OWN,
        "noise",
        "not chosen with the claimed",
        CHOICES,
    ),
    Bug(
        "rounding is not charged",
        mechanism.rounding_not_charged,
        OWN,
        "noise",
        "depends on the sum",
    ),
]
BUGS = {bug.name: bug for bug in LIST}
