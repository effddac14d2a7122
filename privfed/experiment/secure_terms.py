"""What a run under secure aggregation needs besides others: terms, and the noise of its nodes."""

from __future__ import annotations

import math

from privfed.federation.masked_client import public_key
from privfed.federation.roster import Roster
from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import DISCRETE_GAUSSIAN
from privfed.privacy.noise import NodesNoise, NoiseSource
from privfed.privacy.settings import NOBODY, PrivacySettings
from privfed.secure.keys import digest
from privfed.secure.noise_shares import LEVELS
from privfed.secure.terms import Terms


def secure_terms(roster: Roster, privacy: PrivacySettings, seed: int, source: NoiseSource) -> Terms:
    """Return the public frame of secure aggregation.

    Args:
        roster: registered nodes.
        privacy: settings of the run.
        seed: seed of the run.
        source: source of noise of the same run with a trusted server.

    Raises:
        ConfigError: public keys are missing, or the numbers do not fit.
    """
    if source.distribution == DISCRETE_GAUSSIAN:
        allowed = f"privacy.trust={privacy.trust} draws noise at the nodes; use auto"
        raise ConfigError.of("privacy.noise", source.name, allowed)
    repeatable = source.repeatable
    keys = {member.name: public_key(member, seed, repeatable) for member in roster}
    if missing := [name for name, key in keys.items() if not key]:
        raise ConfigError(
            f"roster: {missing[0]} has no public key ({len(missing)} of {len(keys)} nodes have "
            "none); the node makes it with privfed client --enroll, and privfed roster --key "
            "registers it; nothing was sent"
        )
    # A run whose noise may be repeated has the same number every time.
    run = digest("repeatable run", seed).hex()[:32] if repeatable else "0" * 32
    users = tuple(member.users for member in roster)
    terms = Terms(run, tuple(keys.values()), users, privacy.honest, privacy.colluding)
    if privacy.trust == NOBODY:
        assert terms.degrees.neighbours
    return terms


def nodes_noise(source: NoiseSource, terms: Terms, privacy: PrivacySettings) -> NodesNoise:
    """Return the noise of the nodes, all of whom are there if it is simulated."""
    wider = math.sqrt(terms.total / (terms.total - terms.most_colluding))
    parts = len(terms.keys) * (LEVELS + 1)
    return NodesNoise(source, parts, wider, simulated=privacy.trust != NOBODY)
