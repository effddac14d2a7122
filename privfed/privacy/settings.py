"""The `privacy` group of the configuration: clip norms, and how the budget is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from privfed.foundation.constraints import FLAG, POSITIVE, Number, check_settings
from privfed.foundation.errors import ConfigError, check_number
from privfed.privacy.adaptive_clipping import AUTO

Clip = float | str
"""A clip norm, or `auto`: found by a private quantile."""
LARGEST_DELTA = 0.1
"""Largest delta that is accepted without being forced."""
TRUSTED, NOBODY, SIMULATED = "server", "nobody", "simulated"
SHARE = Number(lambda x: 0 < x < 1, "must lie strictly between 0 and 1")


@dataclass(frozen=True)
class ClipNorm:
    """A positive number, or `auto`."""

    def check(self, key: str, value: Clip) -> None:
        """See :class:`privfed.foundation.constraints.Constraint`."""
        if value != AUTO:
            allowed = "must be a positive number, or auto"
            check_number(key, value, lambda x: 1e-100 < x < 1e100, allowed)


@dataclass(frozen=True)
class Text:
    """A name or a path: text that is not empty."""

    def check(self, key: str, value: object) -> None:
        """See :class:`privfed.foundation.constraints.Constraint`."""
        if not isinstance(value, str) or not value.strip():
            raise ConfigError.of(key, value, "must be a name or a path")


@dataclass(frozen=True)
class Trust:
    """Who is trusted with the sums of nodes."""

    def check(self, key: str, value: object) -> None:
        """See :class:`privfed.foundation.constraints.Constraint`."""
        if value not in (TRUSTED, NOBODY, SIMULATED):
            raise ConfigError.of(
                key,
                value,
                "must be server, nobody (nodes mask their sums and add the noise), or simulated "
                "(the noise of nobody, without masks)",
            )


CLIP_NORM = ClipNorm()
FRACTION = Number(lambda x: 0 <= x <= 1, "must lie between 0 and 1")
TEXT = Text()


@dataclass(frozen=True)
class PrivacySettings:
    """How the privacy budget is used.

    Shares are of mu^2, the quantity that adds up over releases. `clip_share` goes to private clip
    norms, if any clip norm is `auto`. `init_share` of the rest goes to the initialiser.

    Attributes:
        clip: None takes the configured clip norms; a number replaces that of the rounds; `auto`
            measures all of them privately.
        quantile: fraction of users whose contribution lies below a clip norm that is `auto`.
        init_share: share of the initialiser; None leaves it to the algorithm, usually 0.55.
        clip_share: share of private clip norms.
        noise_multiplier: fixed noise std / sensitivity of every release; None calibrates noise to
            the budget.
        account: file of the account of all releases from these data; `auto` keeps one on this
            machine for real users, `none` keeps none.
        account_limit: epsilon, at the run's delta, that all runs of the account together may not
            exceed.
        data_name: public name by which the data are recognised; None goes by file and users.
        force_delta: allow a delta above LARGEST_DELTA.
        trust: who is trusted with the sums of nodes: the server, or nobody; `simulated` draws the
            noise of nobody without masks, for large simulations.
        honest: with nobody trusted, fraction of the users that has to answer in every step.
        colluding: likewise, fraction of the users whose nodes may tell the server all they know.
    """

    clip: Annotated[Clip, CLIP_NORM] | None
    quantile: Annotated[float, SHARE]
    init_share: Annotated[float, SHARE] | None
    clip_share: Annotated[float, SHARE]
    noise_multiplier: Annotated[float, POSITIVE] | None
    account: Annotated[str, TEXT] = "auto"
    account_limit: Annotated[float, POSITIVE] | None = None
    data_name: Annotated[str, TEXT] | None = None
    force_delta: Annotated[bool, FLAG] = False
    trust: Annotated[str, Trust()] = TRUSTED
    honest: Annotated[float, FRACTION] = 0.9
    colluding: Annotated[float, FRACTION] = 0.01

    def __post_init__(self) -> None:
        check_settings("privacy", PrivacySettings, vars(self))


def check_delta(delta: float, users: int, forced: bool) -> list[str]:
    """Return a note if delta is so large that the guarantee says little.

    A mechanism that publishes all data of a user with probability delta, and nothing of the others,
    is (0, delta)-private.

    Args:
        delta: delta of the budget.
        users: public number of users.
        forced: whether any delta is allowed.

    Raises:
        ConfigError: delta is above LARGEST_DELTA, and not forced.
    """
    if delta > LARGEST_DELTA and not forced:
        raise ConfigError.of(
            "delta",
            delta,
            f"is above {LARGEST_DELTA:g}: the guarantee may fail with that probability; take one "
            f"far below 1/n = {1 / users:.2g}, or set privacy.force_delta=true",
        )
    if delta <= 1 / users:
        return []
    return [
        f"Delta is {delta:g}, above 1/n = {1 / users:.2g}: the guarantee would allow to publish "
        f"some user's whole data ({delta * users:.2g} of {users:,} users on average). Take a delta "
        "far below 1/n."
    ]
