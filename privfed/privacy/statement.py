"""The guarantee of a run in plain words: what was guaranteed, to whom, under which relation."""

from __future__ import annotations

import json
import math
from typing import Any

from privfed.foundation.errors import ConfigError
from privfed.privacy.neighbouring import REPLACE_ONE, WEAK, ZERO_OUT, canonical

SIMULATION = "simulation"
"""Guarantee of a run whose noise can be repeated: nobody is protected."""
SEEDED = "seeded"
"""Name of the noise that can be repeated; see :class:`privfed.privacy.noise.SeededNoise`."""


def claimed(privacy: dict[str, Any]) -> str:
    """Return what a result guarantees: `worst-case`, `under ...`, `simulation` or `none`.

    Files that were written before simulations were labelled are read as what they are.

    Args:
        privacy: part `privacy` of result.json.
    """
    said = str(privacy["guarantee"])
    repeatable = privacy["noise"] == SEEDED and privacy["releases"] > 0
    return SIMULATION if repeatable and said != "none" else said


def would_be(privacy: dict[str, Any]) -> str:
    """Return the guarantee that the same run with secret noise would have."""
    return str(privacy.get("would_be") or privacy["guarantee"])


def nothing_released(result: dict[str, Any]) -> bool:
    """Return whether the run released nothing, so that each user learnt alone.

    A run without a guarantee counts as a reference that released something.
    """
    privacy = result["privacy"]
    return bool(privacy["releases"] == 0 and privacy["guarantee"] != "none")


def guarantee_in_words(result: dict[str, Any]) -> str:
    """Return what was guaranteed, to whom, and under which neighbouring relation.

    Args:
        result: content of result.json.
    """
    privacy, users = result["privacy"], f"{result['n_users']:,}"
    if nothing_released(result):
        return f"Nothing was released: none of the {users} users' data left its owner."
    if privacy["guarantee"] == "none":
        return (
            "No privacy: this run is a reference and must not be made on data that need protection."
        )
    simulated, basis = claimed(privacy) == SIMULATION, would_be(privacy)
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    change = {
        REPLACE_ONE: "replacing one user's whole data set by any other",
        ZERO_OUT: "emptying one user's data, the number of users being public",
        WEAK: "replacing the targets of one user by any others, its features being public",
    }
    relation = canonical(privacy["neighbouring"])
    holds = "would hold" if simulated else "holds"
    condition = "" if basis == "worst-case" else f" This {holds} {basis}."
    releases = "1 release" if privacy["releases"] == 1 else f"{privacy['releases']} releases in all"
    amount = f"({epsilon:.4g}, {delta:g})" if delta else f"{epsilon:.4g}"
    whatever = ", whatever the data" if basis == "worst-case" else ""
    stay = " Heads stay with their users and are not published."
    heads = stay if result.get("heads", True) else ""
    everything = f"verything published ({releases})"
    start = f"E{everything} is together"
    if simulated:
        start = (
            "Simulation: the noise of this run is seeded, and whoever knows the seed can take it "
            f"away. It protects nobody. With secret noise, e{everything} would together be"
        )
    words = (
        f"{start} {amount}-differentially private for each of the {users} users{whatever}: "
        f"{change[relation]} ({relation}) {'would change' if simulated else 'changes'} "
        "the probability of any outcome by at most "
        f"a factor e^{epsilon:.4g} = {math.exp(min(epsilon, 700)):.4g}"
        f"{f', up to a probability of {delta:g}' if delta else ''}."
        f"{heads}{condition}"
    )
    if simulated:
        secret = "data.evaluate=false" if "judged" in result else "privacy.noise=discrete"
        words += f" For real data use {secret}."
    return words


def account_in_words(result: dict[str, Any]) -> str:
    """Return what all runs on the same data cost so far; empty where no budget was spent.

    Args:
        result: content of result.json.
    """
    account = result["privacy"].get("account")
    if account is None or nothing_released(result):
        return ""
    if isinstance(account, str):
        spent = claimed(result["privacy"]) not in (SIMULATION, "none")
        return f"In no account of the data ({account.partition(': ')[2]})." if spent else ""
    guarantee, copies = account["guarantee"], account.get("releases_by_copies")
    stands = "would stand" if guarantee == SIMULATION else "stands"
    runs = "1 run" if account["runs"] == 1 else f"{account['runs']} runs"
    limit = f", of a limit of {account['limit']['epsilon']:g}" if "limit" in account else ""
    condition = f", {guarantee}" if guarantee not in (SIMULATION, "worst-case") else ""
    again = f" {copies} releases were made by copies of this run as well." if copies else ""
    return (
        f"The account of these data {stands} at epsilon {float(account['epsilon']):.4g}, delta "
        f"{account['delta']:g} ({account['neighbouring']}), after {runs}{limit}{condition}.{again}"
    )


def label(result: dict[str, Any]) -> dict[str, str]:
    """Return the statements that accompany a model wherever it goes.

    Args:
        result: content of result.json.
    """
    privacy = result["privacy"]
    stated = {key: str(privacy[key]) for key in ("epsilon", "delta", "neighbouring", "noise")} | {
        "guarantee": claimed(privacy)
    }
    if stated["guarantee"] == SIMULATION:
        stated["would_be"] = would_be(privacy)
    return {**stated, "privacy": guarantee_in_words(result)}


def label_comment(result: dict[str, Any]) -> bytes:
    """Return the label as the comment of a zip archive, such as model.npz."""
    return json.dumps(label(result)).encode()


def exposes(result: dict[str, Any], real: bool) -> bool:
    """Return whether handing out what a run published would expose the rows of real users.

    Args:
        result: content of result.json.
        real: whether the run was on rows of real users, such as a table.
    """
    unprotected = claimed(result["privacy"]) in (SIMULATION, "none")
    return real and unprotected and not nothing_released(result)


def check_may_leave(what: str, exposed: bool, acknowledged: bool) -> None:
    """Refuse to hand out a simulation on the rows of real users, unless that is wanted.

    Args:
        what: what would be handed out, for the message.
        exposed: see :func:`exposes`.
        acknowledged: whether the caller said that it is a simulation.

    Raises:
        ConfigError: it must not leave.
    """
    if exposed and not acknowledged:
        raise ConfigError(
            f"{what}: is a simulation on a real table and protects nobody (its noise can be taken "
            "away, if it has any); run again with data.evaluate=false, or add --simulation "
            "(simulation=True) if these rows need no protection"
        )


def exposure_in_words(what: str) -> str:
    """Return the warning for somebody who uses a simulation on real rows on his own machine."""
    return (
        f"{what}: is a simulation on a real table and protects nobody; do not hand it out, nor "
        "what it predicts"
    )
