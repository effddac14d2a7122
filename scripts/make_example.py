"""Write examples/coffee.csv.gz: an invented table of coffee ratings, to try personal models.

People differ in two tastes: one for dark or bright coffee, one for its price and origin.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

ORIGINS = ("Brazil", "Colombia", "Ethiopia", "Kenya", "Sumatra")
FILE = Path(__file__).resolve().parent.parent / "examples" / "coffee.csv.gz"


def main(people: int = 1500, seed: int = 7) -> None:
    draw = np.random.default_rng(seed)
    lines = ["person,roast,acidity,price,origin,rating"]
    exotic = np.array([-1.0, -0.6, 1.2, 0.9, -0.5])
    for person in range(people):
        dark, fancy, mild = draw.normal(0, (1.0, 0.7, 0.5))
        for _ in range(int(np.clip(draw.lognormal(2.3, 0.5), 1, 60))):
            roast, acidity, price, origin = (
                draw.uniform(1, 10),
                draw.uniform(1, 10),
                draw.uniform(2, 15),
                draw.integers(5),
            )
            taste = (
                dark * (roast - acidity) / 3.5
                + fancy * ((price - 8.5) / 3.75 + exotic[origin]) / 1.4
            )
            rating = 6 + mild + 0.3 * exotic[origin] + 1.2 * taste + draw.normal(0, 0.8)
            lines.append(
                f"p{person:04},{roast:.1f},{acidity:.1f},{price:.2f},{ORIGINS[origin]},"
                f"{np.clip(rating, 0, 12):.1f}"
            )
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    print(
        f"{FILE.name}: {len(lines) - 1:,} ratings by {people:,} people, "
        f"{FILE.stat().st_size / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
