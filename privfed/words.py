"""How a run is put in words, for the console and the report alike."""

from __future__ import annotations

import math
from typing import Any

Row = dict[str, Any]


def describe_step(row: Row, short: bool = False) -> str:
    """One step in words: epsilon spent and error on fresh users, who are public; short enough for a terminal's line."""
    parts = [f"epsilon spent {row['epsilon']:.4f}" if math.isfinite(row["epsilon"]) else "no privacy"]
    if "mse" in row:
        parts.append(f"error {row['mse']:.3e}")
    if "dist" in row and not short:
        parts.append(f"distance {row['dist']:.2e}")
    if row["missing_users"]:
        parts.append(f"{row['missing_users']} users missing")
    return "  ".join(parts)


def name_step(row: Row, rounds: int) -> str:
    """`round 3/25`, or the name of a preparing step."""
    if row["round"]:
        return f"round {row['round']}/{rounds}"
    return str(row["task"]) if "clip" in row else f"{row['task']} clip"


def guarantee_in_words(result: Row) -> str:
    """What was guaranteed, to whom, under which neighbouring relation."""
    privacy, users = result["privacy"], f"{result['n_users']:,}"
    if privacy["releases"] == 0 and privacy["guarantee"] != "none":
        return f"Nothing was released: none of the {users} users' data left its owner."
    if privacy["guarantee"] == "none":
        return "No privacy: this run is a reference and must not be made on data that need protection."
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    change = {
        "replace-one": "replacing one user's whole data set by any other",
        "add-remove": "adding or removing one user with all its data, the number of users being public",
    }[privacy["neighbouring"]]
    condition = "" if privacy["guarantee"] == "worst-case" else f" This holds {privacy['guarantee']}."
    words = (
        f"Everything published ({privacy['releases']} releases, the initialiser included) is together "
        f"({epsilon:.4g}, {delta:g})-differentially private for each of the {users} users, whatever the data: "
        f"{change} ({privacy['neighbouring']}) changes the probability of any outcome by at most a factor "
        f"e^{epsilon:.4g} = {math.exp(min(epsilon, 700)):.4g}, up to a probability of {delta:g}. "
        f"Heads stay with their users and are not published.{condition}"
    )
    if privacy["noise"] == "seeded":
        words += (
            " The noise of this run is seeded and can be repeated by anyone who knows the seed: it is a simulation. For real "
            "data use privacy.noise=secure."
        )
    return words


METRICS = {
    "mse": "personal models (this run)",
    "mse_standalone": "each user alone",
    "mse_oracle": "oracle that knows the true representation",
}
