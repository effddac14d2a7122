"""Trade-off between the error rates of an attacker, measured and claimed."""

from __future__ import annotations

from typing import Any

import numpy as np

from privfed.audit.audit_verdict import LIKELIHOOD, Findings
from privfed.audit.lower_bounds import claimed_trade_off, measured_trade_off
from privfed.report.audit_page import Curves


def curves_of(findings: Findings, audit: dict[str, Any]) -> Curves:
    """Compute what the page of an audit draws: all thresholds on the likelihood ratio.

    Args:
        findings: Values of the likelihood ratio in both worlds.
        audit: The part "audit" of the result.

    Returns:
        The measured curve with its band, and the claimed curve.
    """
    grid = np.unique(
        np.concatenate([[0.0], np.geomspace(1e-6, 1, 120), np.linspace(0.001, 1, 120)])
    )
    measured = measured_trade_off(findings.ones, findings.zeros, 1 - audit["confidence"])
    return Curves(
        statistic=LIKELIHOOD,
        ones=findings.ones,
        zeros=findings.zeros,
        fpr=measured.fpr,
        fnr=measured.fnr,
        low=measured.low,
        high=measured.high,
        grid=grid,
        claimed=claimed_trade_off(
            audit["epsilon_claimed"], audit["delta"], audit.get("mu_claimed"), grid
        ),
        confidence=audit["confidence"],
    )
