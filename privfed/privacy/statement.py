"""The guarantee of a run in plain words: what was guaranteed, to whom, under which relation."""

from __future__ import annotations

import math
from typing import Any


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
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    change = {
        "replace-one": "replacing one user's whole data set by any other",
        "add-remove": (
            "adding or removing one user with all its data, the number of users being public"
        ),
        "weak": "replacing the targets of one user by any others, its features being public",
    }[privacy["neighbouring"]]
    condition = (
        "" if privacy["guarantee"] == "worst-case" else f" This holds {privacy['guarantee']}."
    )
    releases = "1 release" if privacy["releases"] == 1 else f"{privacy['releases']} releases in all"
    amount = f"({epsilon:.4g}, {delta:g})" if delta else f"{epsilon:.4g}"
    whatever = ", whatever the data" if privacy["guarantee"] == "worst-case" else ""
    stay = " Heads stay with their users and are not published."
    heads = stay if result.get("heads", True) else ""
    words = (
        f"Everything published ({releases}) is together "
        f"{amount}-differentially private for each of the {users} users{whatever}: "
        f"{change} ({privacy['neighbouring']}) changes the probability of any outcome by at most "
        f"a factor e^{epsilon:.4g} = {math.exp(min(epsilon, 700)):.4g}"
        f"{f', up to a probability of {delta:g}' if delta else ''}."
        f"{heads}{condition}"
    )
    if privacy["noise"] == "seeded":
        words += (
            " The noise of this run is seeded and can be repeated by anyone who knows the seed: "
            "it is a simulation. For real data use "
            f"{'data.evaluate=false' if 'judged' in result else 'privacy.noise=discrete'}."
        )
    return words
