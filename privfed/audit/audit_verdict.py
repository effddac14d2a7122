"""Verdict on a claim from observations in two worlds; all bounds hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from privfed.audit.canary import MINUS, PLUS, SILENT, CanaryStage
from privfed.audit.lower_bounds import discriminant, epsilon_of, gaussian_fit, threshold_bound
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, Release, gaussian_mu
from privfed.privacy.neighbouring import ZERO_OUT, influence

GAUSSIAN, COUNTED = "gaussian-fit", "clopper-pearson"
LIKELIHOOD, LEARNT = "likelihood ratio", "learnt discriminant"
CLIENTS, LENGTH = "likelihood ratio with real clients", "number of steps with real clients"


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bound on epsilon.

    Attributes:
        method: how values became a bound.
        statistic: name of the statistic.
        worlds: names of the two worlds.
        repetitions: number of repetitions.
        error_probability: probability that the bound is wrong.
        epsilon_lower: the bound.
        applies: whether the bound counts.
        details: further numbers.
    """

    method: str
    statistic: str
    worlds: str
    repetitions: int
    error_probability: float
    epsilon_lower: float
    applies: bool = True
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """All bounds, and the values of the likelihood ratio in both worlds, for the chart."""

    bounds: list[EpsilonBound]
    ones: Array
    zeros: Array
    pure: bool
    """Whether the claim has no Gaussian part; it is then compared with (eps, delta) itself."""

    @property
    def epsilon_lower(self) -> float:
        """Return the best bound; it holds with the full confidence.

        The error probabilities of all bounds add up to 1 - confidence.
        """
        return max(bound.epsilon_lower for bound in self.bounds if bound.applies)

    def best(self, method: str) -> EpsilonBound:
        """Return the largest bound of a method."""
        return max(
            (b for b in self.bounds if b.method == method),
            key=lambda b: (b.applies, b.epsilon_lower),
        )


def likelihood_weights(
    stage: CanaryStage, played: Sequence[tuple[Any, int, float, float]], releases: Sequence[Release]
) -> Array:
    """Return the weights of the claimed log likelihood ratio, one per release, (releases,).

    A release that is not in the ledger, or that the canary took no part in, has weight 0; it is
    left to the learnt discriminant. A favoured choice changes the ratio by the canary's votes: rate
    * clip, once (zero-out) or twice (replace-one).

    Args:
        stage: plays the repetitions.
        played: one run.
        releases: releases in the ledger.
    """
    distance = influence(stage.experiment.budget.neighbouring)
    charged = {(r.name, r.round): r for r in releases if r.group in (None, stage.group)}

    def weight(name: str, round: int) -> float:
        release = charged.get((name, round))
        if release is None:
            return 0.0
        if isinstance(release, GaussianRelease):
            return distance * (release.clip / release.std) ** 2
        return distance * release.rate * release.clip / 2

    return np.array([weight(question.name, round) for question, round, _, _ in played])


def examine(
    stage: CanaryStage,
    seen: dict[str, Array],
    weights: Array,
    privacy: dict[str, Any],
    confidence: float,
    clients: dict[str, Array] | None = None,
) -> Findings:
    """Compute every bound on epsilon.

    Half of the error probability goes to the fit of the likelihood ratio, the tightest bound. The
    other bounds share the rest.

    Args:
        stage: plays the repetitions.
        seen: observations by world, (repetitions, releases, 2).
        weights: weights of the likelihood ratio, (releases,).
        privacy: the `privacy` part of the result, with the claim.
        confidence: confidence of all bounds together.
        clients: observations with real clients by world, (repetitions, 2, 2); None if there are
            none.
    """
    delta, alpha = privacy["delta"], 1 - confidence
    pure = delta == 0 or not all(
        isinstance(r, GaussianRelease) for r in stage.experiment.ledger.releases
    )
    other = SILENT if stage.experiment.budget.neighbouring == ZERO_OUT else MINUS
    ones, zeros = (seen[world][:, :, 0] @ weights for world in (PLUS, other))
    pairs = [(seen[PLUS], seen[other], other)]
    if other is not SILENT:
        pairs.append((seen[PLUS][:: stage.silent_every], seen[SILENT], SILENT))
    rest = alpha / 2 / (1 + 2 * len(pairs) + 4 * bool(clients))

    def fitted(a: Array, b: Array, statistic: str, worlds: str, error: float) -> EpsilonBound:
        fit = gaussian_fit(a, b, error)
        lower = 0.0 if pure else epsilon_of(fit.mu_lower, delta)
        return EpsilonBound(
            GAUSSIAN, statistic, worlds, len(a), error, lower, fit.applies and not pure, asdict(fit)
        )

    def counted(a: Array, b: Array, statistic: str, worlds: str) -> EpsilonBound:
        return EpsilonBound(
            COUNTED, statistic, worlds, len(a), rest, threshold_bound(a, b, delta, rest)
        )

    worlds = f"{PLUS} and {other}"
    bounds = [
        fitted(ones, zeros, LIKELIHOOD, worlds, alpha / 2),
        counted(ones, zeros, LIKELIHOOD, worlds),
    ]
    for one, zero, name in pairs:
        a, b = (x.reshape(len(x), -1) for x in (one, zero))
        half, worlds = len(a) // 2, f"{PLUS} and {name}"
        learnt = discriminant(a[:half], b[:half])
        a, b = a @ learnt, b @ learnt
        bounds += [fitted(a[half:], b[half:], LEARNT, worlds, rest), counted(a, b, LEARNT, worlds)]
    if clients:
        worlds = f"{PLUS} and {other}"
        a, b = (clients[world][:, 0, 0] for world in (PLUS, other))
        bounds += [fitted(a, b, CLIENTS, worlds, rest), counted(a, b, CLIENTS, worlds)]
        # Which world takes more steps is learnt from the first half.
        a, b = (clients[world][:, 1, 0] for world in (PLUS, other))
        half = len(a) // 2
        a, b = (b[half:], a[half:]) if a[:half].mean() < b[:half].mean() else (a[half:], b[half:])
        bounds += [fitted(a, b, LENGTH, worlds, rest), counted(a, b, LENGTH, worlds)]
    return Findings(bounds, ones, zeros, pure)


def audit_summary(
    findings: Findings,
    privacy: dict[str, Any],
    confidence: float,
    repetitions: int,
    runs: int,
    wrong: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the `audit` part of a result.

    Args:
        findings: all bounds.
        privacy: the `privacy` part of the result, with the claim.
        confidence: confidence of all bounds together.
        repetitions: number of repetitions.
        runs: number of runs.
        wrong: what is wrong with the ledger itself, in words.
    """
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    fit = findings.bounds[0]
    gaussian = {} if findings.pure else {"mu_claimed": gaussian_mu(epsilon, delta), **fit.details}
    return {
        "kind": "repetitions",
        "epsilon_lower": findings.epsilon_lower,
        "epsilon_claimed": epsilon,
        "delta": delta,
        "confidence": confidence,
        "consistent": findings.epsilon_lower <= epsilon and not wrong,
        "repetitions": repetitions,
        "runs": runs,
        **gaussian,
        **({"ledger": list(wrong)} if wrong else {}),
        "bounds": [asdict(bound) for bound in findings.bounds],
    }
