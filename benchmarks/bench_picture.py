"""The picture of docs/benchmarks.md.

It shows users per second of privfed and others, how cost grows, and a round against limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_table import Row
from plotting import plt

BLUE, GREY = "tab:blue", "0.65"


def users_a_second(axes: plt.Axes, rows: Sequence[Row]) -> None:
    """Draw bars on a logarithmic axis, fastest first."""
    first = rows[0]
    bars = {
        f"privfed, n={first[key]:,}": first[f"ours_{name}"]
        for name, key in (("n", "n"), ("base", "base"))
    }
    bars |= {
        f"{row['rival']}, n={row['users']:,}": row["users_per_s"]
        for row in rows
        if row["users_per_s"]
    }
    speeds = sorted(bars.items(), key=lambda bar: bar[1])
    names = [name.replace(", n=", "\nn=") for name, _ in speeds]
    drawn = axes.barh(
        names,
        [speed for _, speed in speeds],
        color=[BLUE if "privfed" in name else GREY for name in names],
    )
    axes.bar_label(drawn, [f"{speed:,.0f}" for _, speed in speeds], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(right=30 * speeds[-1][1])
    axes.set(xlabel="users a second", title="The same private FedRep round")


def growth(axes: plt.Axes, rows: Sequence[Row]) -> None:
    """Draw cost against size, both as multiples of the smallest."""
    widest = max(row["values"][-1] / row["values"][0] for row in rows)
    axes.plot([1, widest], [1, widest], "--", color="black", linewidth=1, label="linear: slope 1")
    for row, marker in zip(rows, "osD^vP*", strict=False):
        values, seconds = row["values"], row["seconds"]
        x, y = [value / values[0] for value in values], [second / seconds[0] for second in seconds]
        name = f"{row['over']} from {values[0]:,}: slope {row['slope']:.2f}"
        axes.plot(x, y, f"{marker}-", markersize=4, linewidth=1.5, label=name)
    ticks = [2**i for i in range(20) if 2**i <= widest]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(
        top=3
        * max(
            row["seconds"][i] / row["seconds"][0]
            for row in rows
            for i in range(len(row["seconds"]))
        )
    )
    axes.legend(fontsize=8, loc="upper left")
    axes.set(xlabel="size", ylabel="time", title="How cost grows")


def near_limits(axes: plt.Axes, rows: Sequence[Row]) -> None:
    """Draw which fraction of each limit a round reaches."""
    names = [
        f"{row['limit']}\n{1e-9 * row['available']:.0f} "
        f"{'GB' if row['unit'] == 'bytes' else 'GFLOP'}/s"
        for row in rows
    ]
    drawn = axes.barh(names[::-1], [row["fraction"] for row in rows][::-1], color=BLUE)
    axes.bar_label(drawn, [f"{row['fraction']:.0%}" for row in rows][::-1], padding=3, fontsize=8)
    axes.axvline(1 / 3, linestyle="--", linewidth=1, color="black", label="1/3")
    axes.set_xlim(0, 1.15)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.legend(fontsize=8, loc="lower right")
    axes.set(xlabel="part of what the machine gives", title=f"A round of {rows[0]['n']:,} users")


PANELS = {"rivals": users_a_second, "curves": growth, "limits": near_limits}


def draw(rows: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw one panel per section, with a remark if a section was not measured."""
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.4))
    for axes, (name, panel) in zip(panels, PANELS.items(), strict=True):
        if rows.get(name):
            panel(axes, rows[name])
            axes.grid(alpha=0.3)
            axes.set_axisbelow(True)
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, f"{name}: not measured yet", ha="center")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
