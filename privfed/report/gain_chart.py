"""Who gains by a personal model, for the report of a simulation on a table: not private, and marked so."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from privfed.data.error_tally import RATIOS, SIZES
from privfed.foundation.linalg import Array
from privfed.report.charts import Series, histogram_chart
from privfed.report.wording import error_of

NOT_PRIVATE = "Not private: shown because this is a simulation."


def gain_body(counts: Array, by_size: Array | None, metrics: dict[str, Any]) -> str:
    """A histogram of gains over learning alone, and a table by number of rows; counts on the bins of RATIOS."""
    edges = RATIOS.edges
    ratio = error_of(metrics) != "risk"
    chart = histogram_chart(
        list(edges),
        [Series("users", list(counts), colour="c1")],
        gain_label(ratio),
        "users",
        log=ratio,
    )
    middle = len(counts) // 2
    wins, losses, users = counts[middle:].sum(), counts[:middle].sum(), counts.sum()
    shares = f"{wins / users:.0%} of {users:,.0f} judged users are at least as good as alone, {losses / users:.0%} are worse"
    words = f"{shares}. {NOT_PRIVATE}"
    table = "" if by_size is None else size_table(by_size)
    return f'{chart}<p class="soft">{escape(words)}</p>{table}'


def gain_label(ratio: bool) -> str:
    """What gains are measured in: ratios of errors, or differences of shares."""
    return (
        "error alone / error of the personal model"
        if ratio
        else "wrong answers alone, less those of the personal model"
    )


def size_table(by_size: Array) -> str:
    """Users by number of rows: by_size (sizes, 4) has users, those who gain, and the sums of their errors, own and alone."""
    rows = []
    for (users, gain, own, alone), low, high in zip(
        by_size, SIZES, [*SIZES[1:], np.inf], strict=True
    ):
        if users:
            span = (
                f"{low:,}"
                if high == low + 1
                else f"{low:,} or more"
                if np.isinf(high)
                else f"{low:,} to {int(high) - 1:,}"
            )
            cells = (
                f"{users:,.0f}",
                f"{gain / users:.0%}",
                f"{own / users:.4g}",
                f"{alone / users:.4g}",
            )
            rows.append(
                f"<tr><td>{span}</td>"
                + "".join(f'<td class="n">{cell}</td>' for cell in cells)
                + "</tr>"
            )
    head = "".join(f'<th class="n">{name}</th>' for name in ("users", "who gain", "error", "alone"))
    return (
        f'<div class="scroll"><table><thead><tr><th>rows a user trains with</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
