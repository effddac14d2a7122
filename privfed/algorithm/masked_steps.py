"""Steps of a strategy under secure aggregation: what `PrivateStrategy` does with masked sums.

agree       once: nodes exchange keys through the server
announce    a step: nodes are told the grid and the noise of each sum, and who takes part
release     masked sums are added up, too few of them end the run; when the ledger has the
            releases, survivors reveal what takes the masks off the total
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from flwr.common import FitIns, FitRes, Parameters
from flwr.server.client_proxy import ClientProxy

from privfed.federation.federation import Federation
from privfed.federation.masked_client import NOTHING
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.privacy.accounting import GaussianRelease
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.distances import ASSUMED
from privfed.privacy.exact_sampling import Whole
from privfed.secure.aggregator import SecureAggregator
from privfed.secure.node import Message
from privfed.secure.terms import MaskedSum, Terms

if TYPE_CHECKING:
    from privfed.algorithm.phases import Step
    from privfed.algorithm.strategy import PrivateStrategy

NONCE = 16
"""Random bytes by which a server that was restarted begins a new session."""
AT_ONCE = 64
"""Most nodes that are asked at the same time."""
PATIENCE = 120.0
"""Seconds that a node has for a message of the protocol."""
TOO_LARGE = 6.0
"""Standard deviations by which the norm of noise may exceed its mean before a run is stopped."""
log = logging.getLogger("privfed.masked_steps")


class MaskedSteps:
    """The server's side of all steps of a run.

    Args:
        federation: frame of the run, with the terms of secure aggregation.
    """

    def __init__(self, federation: Federation) -> None:
        assert federation.secure is not None
        self.terms, self.strict = federation.secure, federation.strict
        self.places = {name: place for place, name in enumerate(federation.nodes)}
        nonce = b"" if federation.gate.source.repeatable else secrets.token_bytes(NONCE)
        self.server = SecureAggregator(self.terms, self._exchange, nonce)
        self._nodes: dict[int, ClientProxy] = {}
        self._releases: list[GaussianRelease] = []

    def _exchange(self, messages: Mapping[int, Message]) -> dict[int, Mapping[str, object]]:
        """Ask nodes at the same time; leave out those that do not answer."""

        def ask(item: tuple[int, Message]) -> tuple[int, Mapping[str, object] | None]:
            place, message = item
            try:
                ins = FitIns(NOTHING, dict(message))
                return place, self._nodes[place].fit(ins, PATIENCE, None).metrics
            except Exception as error:  # whatever it is, the node gives no answer
                if self.strict and isinstance(error, ConfigError):
                    raise
                log.warning(
                    "a node did not answer %s (%s)", message["secure"], type(error).__name__
                )
                return place, None

        known = {place: message for place, message in messages.items() if place in self._nodes}
        workers = 1 if self.strict else max(1, min(AT_ONCE, len(known)))
        with ThreadPoolExecutor(workers) as pool:
            answers = pool.map(ask, known.items())
            return {place: answer for place, answer in answers if answer is not None}

    def announce(
        self, strategy: PrivateStrategy, step: Step, ins: FitIns, nodes: Sequence[ClientProxy]
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the message of a step to each node that takes part.

        Args:
            strategy: the strategy.
            step: the step.
            ins: announcement and parameters.
            nodes: nodes that are connected.

        Raises:
            PrivfedError: too few of them are.
        """
        self._nodes = {self.places[node.cid]: node for node in nodes}
        self._releases = releases_of(strategy, step)
        places, number = list(self._nodes), strategy.done + 1
        if not self.server.keys:
            self.server.agree(places, number)
        sums = [
            MaskedSum(each.size, each.grid, int(each.std / each.grid), each.bound, each.clip)
            for each in self._releases
        ]
        told = self.server.announce(number, sums, places)
        return [
            (self._nodes[place], FitIns(ins.parameters, {**ins.config, **message}))
            for place, message in told.items()
        ]

    def release(
        self,
        strategy: PrivateStrategy,
        step: Step,
        results: Sequence[tuple[ClientProxy, FitRes]],
    ) -> int:
        """Add up masked sums, charge what will be released, and unmask it; the gate holds it then.

        Returns:
            The number of users that are missing.

        Raises:
            PrivfedError: too few users have answered: nothing was charged or unmasked. Or a sum is
                longer than its users and its noise can make it: the run is stopped.
        """
        for node, answer in results:
            words = words_of(answer.parameters)
            if words is not None and answer.metrics.get("step") == strategy.done + 1:
                self.server.take(self.places[node.cid], words, answer.metrics.get("bundle"))
        missing = self.server.close()

        def unmask() -> list[Whole]:
            found = self.server.unmask()
            for made, total in zip(self._releases, found, strict=True):
                check_length(made, total, self.terms, self.wider(missing))
            return found

        strategy.federation.gate.open(self._releases, unmask)
        return missing

    def wider(self, missing: int) -> float:
        """Return by which factor the noise that stays exceeds what honest survivors must add.

        Args:
            missing: number of lost users.
        """
        return wider(self.terms, sum(each.size for each in self._releases), missing)


def releases_of(strategy: PrivateStrategy, step: Step) -> list[GaussianRelease]:
    """Return the releases of a step in the order in which nodes send sums: all public."""
    gate, names = strategy.federation.gate, list(step.phase.named)
    measure, found = MEASURES.get(step.question), []
    for place, (name, cost) in enumerate(strategy.costs(step)):
        summed = step.releases and place < len(names)
        if summed:
            size, bound = math.prod(strategy.shapes(step)[name]), strategy.bound(step, name)
        else:
            assert measure is not None
            size, bound = measure.size, measure.bound
        made = gate.calibrated(
            name,
            size,
            bound=bound,
            mu=cost.mu,
            round=step.round,
            group=step.group,
            sampling=cost.sampling,
            users=strategy.federation.n if summed else 0,
            masked=True,
        )
        found.append(made)
    return found


def wider(terms: Terms, size: int, missing: int) -> float:
    """Return by which factor the noise that stays exceeds what honest survivors have to add."""
    levels = terms.levels(size)
    kept = levels.losses[levels.level(missing)]
    return math.sqrt((terms.total - missing) / (terms.total - terms.most_colluding - kept))


def words_of(parameters: Parameters) -> np.ndarray | None:
    """Return the masked sums of an answer; None if it holds something else."""
    if parameters.tensor_type != "masked" or len(parameters.tensors) != 1:
        return None
    tensor = parameters.tensors[0]
    return None if len(tensor) % 8 else np.frombuffer(tensor, dtype="<u8")


def check_length(made: GaussianRelease, total: Whole, terms: Terms, factor: float) -> None:
    """Raise if a sum is longer than its users' parts and its noise can make it.

    No server can clip the sums of single nodes again. So a node that does not keep to its bound
    can spoil a sum, and this is how it is noticed.

    Args:
        made: the release.
        total: its sum, in steps of the grid.
        terms: public frame of the run.
        factor: see `wider`.

    Raises:
        PrivfedError: it is.
    """
    length = made.grid * float(np.linalg.norm(total.astype(np.float64)))
    noise = made.std * factor * (math.sqrt(made.size) + TOO_LARGE)
    most = terms.total * (made.clip + made.grid * math.sqrt(made.size)) + noise
    if length > most:
        raise PrivfedError(
            f"the released {made.name} has norm {length:.3g}, its users can reach {most:.3g} "
            "together: a node did not keep to the clip norm; the run was stopped"
        )


def check_maskable(kind: str, name: str, selects: bool, statistic: bool) -> None:
    """Raise unless a sum can be released without anybody seeing it before noise.

    Args:
        kind: kind of the bound on one user's part.
        name: name of the sum.
        selects: whether a candidate is selected.
        statistic: whether something else than the sum is released.

    Raises:
        ConfigError: it cannot.
    """
    why = ""
    if selects:
        why = "a selection needs a server that sees the scores"
    elif statistic:
        why = f"a statistic of {name} is released, which needs a server that sees the sum"
    elif kind == ASSUMED:
        why = f"parts of {name} are not clipped, so that sums need not fit the modulus"
    if why:
        raise ConfigError.of("privacy.trust", "nobody", f"{why}; nothing was sent")
