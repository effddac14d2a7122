"""Users made anew are the users in memory, in every way they can be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.config.composition import compose
from privfed.data.problems.streaming import Streamed
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError

SIZE = ("data.n=5000", "data.m=6", "data.d=8", "rounds=3")


def both(*overrides):
    return [
        Experiment(compose([*SIZE, *overrides, f"data.stream={flag}"]))
        for flag in ("false", "true")
    ]


@pytest.mark.parametrize(
    "users",
    [None, np.array([0, 1, 700, 1500, 2899]), np.array([], dtype=np.int64)],
    ids=["all", "some", "none"],
)
@pytest.mark.parametrize("exact", [True, False])
def test_blocks_are_the_same(users, exact):
    kept, streamed = (
        experiment.data.cohort(1100, 4000) for experiment in both("data.features=mixed")
    )
    assert (
        isinstance(streamed, Streamed)
        and streamed.shape == kept.shape
        and streamed.m == kept.m == 6
        and len(streamed) == len(kept)
    )
    np.testing.assert_array_equal(streamed.ids, kept.ids)
    for examples in (slice(None), slice(3)):
        parts = [
            list(cohort.blocks(users, examples=examples, bytes_each=1 << 14, exact=exact))
            for cohort in (kept, streamed)
        ]
        for name in ("ids", "X", "y"):
            mine, theirs = (
                np.concatenate([getattr(block, name) for block in p] or [np.empty(0)])
                for p in parts
            )
            np.testing.assert_array_equal(mine, theirs)
            assert (
                name == "ids"
                or not len(mine)
                or mine.dtype == (np.float64 if exact else np.float32)
            )
        if users is None:
            np.testing.assert_array_equal(
                *(np.concatenate([b.truth.W_star for b in p]) for p in parts)
            )


@pytest.mark.parametrize("algo", ["fedrep", "altmin", "centaur", "expmech", "standalone", "oracle"])
def test_a_run_is_the_same_to_the_last_bit(algo):
    kept, streamed = (experiment.run() for experiment in both(f"algo={algo}"))
    assert streamed.result["metrics"] == kept.result["metrics"]
    for name, array in kept.model.items():
        np.testing.assert_array_equal(streamed.model[name], array)


def test_only_what_is_worked_on_is_in_memory():
    users = both()[1].data.cohort(0, 10**12)
    block = next(users.blocks())
    assert len(users) == 10**12 and len(block) <= 4096


def test_what_needs_everything_in_memory_says_so():
    streamed = both()[1].data.cohort(0, 10)
    with pytest.raises(ConfigError, match=r"data\.stream=true.*data\.stream=false"):
        _ = streamed.X
    with pytest.raises(ConfigError, match=r"data\.stream"):
        Experiment(compose(["data.stream=maybe"]))
