"""Whether the noise that a node is asked to add is what the plan promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privfed.federation.limits import refused
from privfed.federation.plan import Plan
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.distances import ASSUMED, DISTANCES, sensitivity_of
from privfed.secure.terms import MaskedSum


def check_noise(plan: Plan, number: int, clips: Sequence[float], sums: Sequence[MaskedSum]) -> None:
    """Refuse a step whose noise is less than its planned cost needs.

    Args:
        plan: what the server said it would ask.
        number: number of the step.
        clips: announced clip norms.
        sums: announced sums with their grids and noise.

    Raises:
        ConfigError: it is refused.
    """
    planned, _ = plan.step(number)
    measure = MEASURES.get(planned.measure)
    bounds = list(clips) if planned.release else []
    bounds += [measure.bound.clip] * len(planned.clips) if measure is not None else []
    if not len(bounds) == len(sums) == len(planned.costs):
        raise refused(f"step {number} announces {len(sums)} sum(s), not as planned")
    for bound, total, (mu, _) in zip(bounds, sums, planned.costs, strict=True):
        if total.kind not in DISTANCES or total.kind == ASSUMED:
            raise refused(f"step {number} has parts of kind {total.kind[:40]!r}")
        rounding = total.grid * math.sqrt(total.size)
        moved = sensitivity_of(
            total.kind, bound, plan.relation, sampling=planned.sampling, rounding=rounding
        )
        if total.radius < bound * (1 - 1e-12) or total.std * mu < moved * (1 - 1e-12):
            raise refused(
                f"step {number} would have noise of {total.std:.4g}, the plan promised "
                f"{moved / mu:.4g}"
            )
