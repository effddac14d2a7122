"""Users who gain by a personal model, in a simulation on a table; marked as not private."""

from __future__ import annotations

from typing import Any

import numpy as np

from privfed.data.evaluation_tally import RATIOS, SIZES
from privfed.foundation.linalg import Array
from privfed.report.charts import Series, histogram_chart
from privfed.report.templating import Picture, TextTable
from privfed.report.wording import error_of


def gain_picture(counts: Array, by_size: Array | None, metrics: dict[str, Any]) -> Picture:
    """Return a histogram of gains over learning alone, with a table by number of rows.

    Args:
        counts: Users per bin of RATIOS, shape (bins,).
        by_size: See `size_table`; None leaves the table out.
        metrics: The metrics of the run's result.
    """
    ratio = error_of(metrics) != "risk"
    series = [Series("users", list(counts), colour="c1")]
    chart = histogram_chart(list(RATIOS.edges), series, gain_label(ratio), "users", log=ratio)
    middle = len(counts) // 2
    wins, losses, users = counts[middle:].sum(), counts[:middle].sum(), counts.sum()
    note = (
        f"{wins / users:.0%} of {users:,.0f} judged users are at least as good as alone, "
        f"{losses / users:.0%} are worse. Not private: shown because this is a simulation."
    )
    table = None if by_size is None else size_table(by_size)
    return Picture("Who gains by a personal model", chart, note, table)


def gain_label(ratio: bool) -> str:
    """Return the name of the gain: a ratio of errors, or a difference of shares."""
    if ratio:
        return "error alone / error of the personal model"
    return "wrong answers alone, less those of the personal model"


def size_table(by_size: Array) -> TextTable:
    """Return a table of users by the number of rows they train with.

    Args:
        by_size: Per class of SIZES, the number of users, the number of users who gain, and the sums
            of the users' errors, own and alone; shape (sizes, 4).

    Returns:
        One row per class that has users.
    """
    rows = []
    for (users, gain, own, alone), low, high in zip(
        by_size, SIZES, [*SIZES[1:], np.inf], strict=True
    ):
        if not users:
            continue
        means = f"{own / users:.4g}", f"{alone / users:.4g}"
        rows.append([_span(int(low), high), f"{users:,.0f}", f"{gain / users:.0%}", *means])
    return TextTable(["rows a user trains with", "users", "who gain", "error", "alone"], rows)


def _span(low: int, high: float) -> str:
    """Return the whole numbers from `low` to below `high`, in words."""
    if high == low + 1:
        return f"{low:,}"
    return f"{low:,} or more" if np.isinf(high) else f"{low:,} to {int(high) - 1:,}"
