"""Compare the accountant with dp-accounting and Opacus: python scripts/compare_accountants.py.

It writes the table of docs/privacy.md: epsilon of the same releases by privfed, by dp-accounting
(privacy loss distributions and Renyi) and by Opacus (PRV and Renyi). Releases are those of mixes,
and of the ledgers of whole runs. The table says - where a library has no such mechanism or
relation. `--print` writes to the terminal instead.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privfed.privacy.accounting import Cost, Planned, total_epsilon
from privfed.privacy.neighbouring import REPLACE_ONE, ZERO_OUT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "privacy.md"
BEGIN, END = "<!-- accountants: begin -->", "<!-- accountants: end -->"
DELTA = 1e-6
STEP = 1e-4
"""Grid step of privacy losses."""


@dataclass(frozen=True)
class Case:
    """Releases whose total is compared.

    Attributes:
        name: name of the row.
        costs: cost of each release; empty if a run has to be made.
        run: settings of the run whose ledger is compared.
        relation: neighbouring relation.
    """

    name: str
    costs: Sequence[Cost] = ()
    run: Sequence[str] = field(default=())
    relation: str = REPLACE_ONE

    def releases(self) -> Sequence[Cost]:
        """Return the releases; a run is made on simulated users, and costs do not depend on it."""
        if not self.run:
            return self.costs
        from privfed.config.composition import compose
        from privfed.experiment.wiring import Experiment

        experiment = Experiment(compose([*self.run, f"neighbouring={self.relation}"]))
        experiment.run()
        return experiment.ledger.releases


SMALL = ("data.n=200", "data.d=6", f"delta={DELTA}")
NETWORK = ("data=patterns", "model=mlp", "data.n=64", "data.m=4", "data.size=4", "data.classes=3")
MIXES = [
    Case("1 Gaussian release, mu=1", [Planned(1.0)]),
    Case("30 Gaussian releases, mu=.1", [Planned(0.1)] * 30),
    Case("Gaussian, mu=.02 .5 .9", [Planned(0.02), Planned(0.5), Planned(0.9)]),
    Case(
        "20 Gaussian, mu=.1; pure, .3 .2", [Planned(0.1)] * 20 + [Planned(0, 0.3), Planned(0, 0.2)]
    ),
    Case(
        "Gaussian, mu=.3; groups, mu=.4 .2 .6",
        [Planned(0.3), *(Planned(mu, group=g) for g, mu in enumerate((0.4, 0.2, 0.6)))],
    ),
    *(
        Case(name, costs, relation=relation)
        for relation in (ZERO_OUT, REPLACE_ONE)
        for name, costs in (
            ("50 sampled, q=.1, mu=.8", [Planned(0.8, sampling=0.1)] * 50),
            ("300 sampled, q=.01, mu=1", [Planned(1.0, sampling=0.01)] * 300),
            (
                "50 sampled, q=.1, mu=.8; Gaussian, mu=.4",
                [*[Planned(0.8, sampling=0.1)] * 50, Planned(0.4)],
            ),
        )
    ),
]
RUNS = [
    Case(f"run: {name}", run=run, relation=relation)
    for name, run in {
        "fedrep, eps=1": ("algo=fedrep", *SMALL),
        "altmin, eps=2, clip=auto": ("algo=altmin", "eps=2", "privacy.clip=auto", *SMALL),
        "expmech, eps=1": ("algo=expmech", "rounds=3", "algo.candidates=8", *SMALL),
        "network/centaur, eps=4, sampling=.3": (
            "algo=network/centaur", "eps=4", "rounds=8", "algo.sampling=0.3", *NETWORK,
            f"delta={DELTA}",
        ),
    }.items()
    for relation in (REPLACE_ONE, ZERO_OUT)
]  # fmt: skip


def for_one_user(costs: Sequence[Cost]) -> list[list[Cost]]:
    """Return what the users of each disjoint group pay for."""
    groups: set[int | None] = {cost.group for cost in costs} - {None} or {None}
    return [[cost for cost in costs if cost.group in (None, group)] for group in groups]


def by_losses(costs: Sequence[Cost], relation: str) -> float | None:
    """Compose privacy loss distributions with dp-accounting.

    No pure mechanism tells more than randomised response of the same epsilon.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    replaced = relation == REPLACE_ONE
    sampled = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    total = pld.identity(STEP)
    for cost in sorted(set(costs), key=repr):
        if cost.mu and cost.sampling < 1:
            one = pld.from_gaussian_mechanism(
                (2.0 if replaced else 1.0) / cost.mu,
                sampling_prob=cost.sampling,
                value_discretization_interval=STEP,
                neighboring_relation=sampled,
            )
        elif cost.mu:
            one = pld.from_gaussian_mechanism(1.0 / cost.mu, value_discretization_interval=STEP)
        else:
            noise = 2.0 / (1.0 + math.exp(cost.epsilon))
            one = pld.from_randomized_response(noise, 2, value_discretization_interval=STEP)
        total = total.compose(one.self_compose(list(costs).count(cost)))
    return float(total.get_epsilon_for_delta(DELTA))


def by_renyi(costs: Sequence[Cost], relation: str) -> float | None:
    """Compose Renyi divergences with dp-accounting; it has no pure mechanism of any epsilon."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    if not comparable(costs, relation):
        return None
    accountant = RdpAccountant()
    for cost in costs:
        event = dp_event.GaussianDpEvent(1.0 / cost.mu)
        accountant.compose(
            event if cost.sampling == 1 else dp_event.PoissonSampledDpEvent(cost.sampling, event)
        )
    return float(accountant.get_epsilon(DELTA))


def comparable(costs: Sequence[Cost], relation: str) -> bool:
    """Return whether a library of Gaussian mechanisms under add-or-remove has these releases.

    Without sampling, mu says everything about a release, whatever the relation.
    """
    gaussian = all(cost.mu > 0 for cost in costs)
    return gaussian and (relation == ZERO_OUT or all(cost.sampling == 1 for cost in costs))


def by_opacus(kind: str) -> Callable[[Sequence[Cost], str], float | None]:
    """Return an accountant of Opacus: `prv` or `rdp`."""

    def epsilon(costs: Sequence[Cost], relation: str) -> float | None:
        from opacus.accountants import PRVAccountant, RDPAccountant

        if not comparable(costs, relation):
            return None
        accountant = PRVAccountant() if kind == "prv" else RDPAccountant()
        accountant.history = [
            (1.0 / cost.mu, cost.sampling, list(costs).count(cost))
            for cost in sorted(set(costs), key=repr)
        ]
        return float(accountant.get_epsilon(DELTA))

    return epsilon


OTHERS: dict[str, Callable[[Sequence[Cost], str], float | None]] = {
    "dp-accounting, PLD": by_losses,
    "dp-accounting, RDP": by_renyi,
    "Opacus, PRV": by_opacus("prv"),
    "Opacus, RDP": by_opacus("rdp"),
}


def compared(case: Case) -> list[float | None]:
    """Return epsilon by privfed and by each of OTHERS; None where there is no such mechanism."""
    costs = [Planned(cost.mu, cost.epsilon, cost.group, cost.sampling) for cost in case.releases()]
    found: list[float | None] = [total_epsilon(costs, DELTA, case.relation == REPLACE_ONE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for other in OTHERS.values():
            each = [other(mine, case.relation) for mine in for_one_user(costs)]
            known = [value for value in each if value is not None]
            found.append(max(known) if len(known) == len(each) else None)
    return found


def line(case: Case) -> str:
    """Return the row of a case."""
    values = ("-" if value is None else f"{value:.4f}" for value in compared(case))
    return f"| {case.name} | {case.relation} | {' | '.join(values)} |"


def table(cases: Sequence[Case]) -> str:
    """Return the table of all cases."""
    heads = ["releases", "relation", "privfed", *OTHERS]
    rows = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * (len(heads) - 2)]
    return "\n".join([*rows, *map(line, cases)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="print the table, and write nothing")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # dp-accounting tells of each order that it leaves out
    made = table([*MIXES, *RUNS])
    if options.print:
        print(made)
        return
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
