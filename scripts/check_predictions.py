"""Compare predictions with runs: python scripts/check_predictions.py [--seeds 5] [--only N].

Thirty settings, with S^2 = (n mu)^2 (m - k) / (4 k^2 (d - k)^2) from 1.5 to 16: the range in which
runs pass from learning a little to learning all that label noise allows. Prints a table with the
median and the worst error of the runs beside the prediction, and ends with exit code 1 if a median
is more than 30% away from its prediction.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.privacy.accounting import gaussian_mu

INFORMATION = (1.5, 3.0, 6.0, 10.0, 16.0)
SIZES = (
    (50, 2, 10, 0.01, 1.0),
    (50, 2, 10, 0.1, 4.0),
    (30, 1, 8, 0.01, 2.0),
    (40, 4, 16, 0.01, 4.0),
    (100, 2, 20, 0.01, 4.0),
    (30, 3, 20, 0.3, 2.0),
)
"""d, k, m, R, eps of problems; with five amounts of information each they make thirty settings."""
ALLOWED = 1.3


def users(d: int, k: int, m: int, eps: float, information: float) -> int:
    """Return the number of users n at which S^2 equals `information`."""
    mu = gaussian_mu(eps, 1e-6)
    return math.ceil(2 * k * (d - k) * math.sqrt(information / (m - k)) / mu)


def errors(overrides: list[str], seeds: range) -> tuple[list[float], float]:
    """Return the errors of runs, and the prediction."""
    found = []
    for seed in seeds:
        experiment = Experiment(compose([*overrides, f"seed={seed}"]))
        experiment.watches = False
        found.append(experiment.run().result["metrics"]["mse"])
    return found, experiment.strategy.predicted.error


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a prediction is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=300, help="first seed")
    parser.add_argument("--only", type=int, default=None, help="number of settings to check")
    options = parser.parse_args(arguments)
    settings = [(size, s2) for size in SIZES for s2 in INFORMATION][: options.only]
    wrong = 0
    print("   d  k   m     R  eps     n   S^2  predicted     median      worst  ratio")
    for size, s2 in settings:
        d, k, m, R, eps = size
        n = users(d, k, m, eps, s2)
        overrides = [
            "algo.estimator=posterior", "init=cascade", "force=true", f"eps={eps}", f"data.n={n}",
            f"data.d={d}", f"data.k={k}", f"data.m={m}", f"data.R={R}",
            f"algo.noise={R}", f"init.noise={R}",
        ]  # fmt: skip
        found, predicted = errors(overrides, range(options.first, options.first + options.seeds))
        median = statistics.median(found)
        ratio = median / predicted
        wrong += not 1 / ALLOWED <= ratio <= ALLOWED
        print(
            f"{d:4} {k:2} {m:3} {R:5} {eps:4} {n:5} {s2:5} {predicted:10.3g} {median:10.3g} "
            f"{max(found):10.3g} {ratio:6.2f}",
            flush=True,
        )
    print(f"{len(settings) - wrong} of {len(settings)} medians are within 30% of the prediction")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
