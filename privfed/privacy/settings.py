"""The `privacy` group of the configuration: clip norms, and how the budget is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from privfed.foundation.constraints import POSITIVE, Number, check_settings
from privfed.foundation.errors import check_number
from privfed.privacy.adaptive_clipping import AUTO

Clip = float | str
"""A clip norm, or `auto`: found by a private quantile."""
SHARE = Number(lambda x: 0 < x < 1, "must lie strictly between 0 and 1")


@dataclass(frozen=True)
class ClipNorm:
    """A positive number, or `auto`."""

    def check(self, key: str, value: Clip) -> None:
        """See :class:`privfed.foundation.constraints.Constraint`."""
        if value != AUTO:
            allowed = "must be a positive number, or auto"
            check_number(key, value, lambda x: 1e-100 < x < 1e100, allowed)


CLIP_NORM = ClipNorm()


@dataclass(frozen=True)
class PrivacySettings:
    """How the privacy budget is used.

    Shares are of mu^2, the quantity that adds up over releases. `clip_share` goes to private clip
    norms, if any clip norm is `auto`. `init_share` of the rest goes to the initialiser.

    Attributes:
        clip: None takes the configured clip norms; a number replaces that of the rounds; `auto`
            measures all of them privately.
        quantile: fraction of users whose contribution lies below a clip norm that is `auto`.
        init_share: share of the initialiser.
        clip_share: share of private clip norms.
        noise_multiplier: fixed noise std / sensitivity of every release; None calibrates noise to
            the budget.
    """

    clip: Annotated[Clip, CLIP_NORM] | None
    quantile: Annotated[float, SHARE]
    init_share: Annotated[float, SHARE]
    clip_share: Annotated[float, SHARE]
    noise_multiplier: Annotated[float, POSITIVE] | None

    def __post_init__(self) -> None:
        check_settings("privacy", PrivacySettings, vars(self))
