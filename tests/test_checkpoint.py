"""Interrupted runs: the same numbers in the end, nothing released twice, nothing paid back."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
from conftest import small
from support.processes import ledger_of

from privfed.config.composition import compose
from privfed.config.saved_config import recall
from privfed.experiment import checkpoint
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Roster
from privfed.federation.user_state import private_folder
from privfed.foundation.errors import BudgetError, ConfigError
from privfed.report.run_files import keep_previous, write_config, write_run

PLANS = {
    "fedrep": (),
    "altmin": ("algo=altmin", "rounds=2", "privacy.clip=auto"),
    "expmech": ("algo=expmech", "algo.candidates=50"),
    "power method": ("init=ppm", "rounds=1"),
    "private clip norms": ("privacy.clip=auto",),
    "centaur with a network": ("algo=network/centaur", "model=mlp", "algo.lr=0.1"),
    "centaur, averaged": (
        "algo=network/centaur",
        "model=mlp",
        "algo.average=0.7",
        "algo.server_momentum=0.5",
        "privacy.clip=auto",
    ),
    "ppsgd, sampled": ("algo=ppsgd", "algo.sampling=0.5", "eps=inf"),
}
IMAGES = ("data.n=60", "data.m=6", "data.size=6", "model.module.hidden=[8,5]", "rounds=3")
SECURE = "privacy.noise=secure"


@cache
def composed(settings):
    """The same settings again and again: composing them takes longer than a small run."""
    images = "model=mlp" in settings or "algo=ppsgd" in settings
    return compose([*IMAGES, *settings] if images else small(*settings))


class KilledError(Exception):
    """The end of a process, as far as a test can tell."""


def started(folder, *settings, after=None, between=None):
    """A run in a folder, killed after this step, or between its ledger entry and its checkpoint."""
    experiment = Experiment(composed(settings))
    folder.mkdir()
    write_config(folder, experiment.cfg)
    return killed(experiment, folder, False, after, between)


def resumed(folder, after=None, between=None):
    return killed(Experiment(recall(folder, [])), folder, True, after, between)


def killed(experiment, folder, resume, after, between):
    save = checkpoint.save

    def saving(where, strategy, rows):
        if strategy.done == between:
            raise KilledError
        save(where, strategy, rows)

    def step(row):
        if row["step"] == after:
            raise KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "save", saving)
        if after is between is None:
            return experiment, experiment.run(folder, step, resume=resume)
        with pytest.raises(KilledError):
            experiment.run(folder, step, resume=resume)
    return experiment, None


def told(folder, outcome):
    """Everything a run says but for the clock."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in outcome.rows]
    ledger = [
        {key: value for key, value in line.items() if key not in ("time", "chain")}
        for line in ledger_of(folder)
    ]
    result = {key: outcome.result[key] for key in ("metrics", "privacy", "rounds")}
    return rows, ledger, result, {name: array.tolist() for name, array in outcome.model.items()}


@pytest.mark.parametrize("how", ["after", "between"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_seeded_run_killed_anywhere_ends_as_if_nothing_had_happened(tmp_path, plan, how):
    whole, outcome = started(tmp_path / "whole", *PLANS[plan])
    expected = told(tmp_path / "whole", outcome)
    steps = len(whole.strategy.plan)
    for step in range(1, steps + 1):
        folder = tmp_path / f"killed-{step}"
        started(folder, *PLANS[plan], **{how: step})
        if step == 2:  # and once more, at the same place
            resumed(folder, **{how: step + 1 if how == "after" else step})
        assert told(folder, resumed(folder)[1]) == expected, f"step {step} of {steps}"


@pytest.mark.parametrize("plan", ["fedrep", "altmin", "expmech", "private clip norms"])
def test_a_step_that_secure_noise_has_paid_for_is_given_up_and_stays_paid(tmp_path, plan):
    steps = len(Experiment(composed(PLANS[plan])).strategy.plan)
    folder = tmp_path / "run"
    started(folder, *PLANS[plan], SECURE, between=steps)
    paid = ledger_of(folder)
    experiment, outcome = resumed(folder)
    assert ledger_of(folder) == paid, "the last step was paid for, and is not made again"
    step = experiment.strategy.plan[-1]
    asked = experiment.federation.asked(step.phase.groups, step.group)
    assert outcome.rows[-1]["missing_users"] == sum(asked.values()) and len(outcome.rows) == steps
    assert outcome.result["privacy"]["releases"] == len(paid)
    assert (
        outcome.result["privacy"]["epsilon"]
        == paid[-1]["epsilon_spent"]
        <= experiment.budget.epsilon
    )
    assert math.isfinite(outcome.result["metrics"]["mse"])


def test_a_secure_run_goes_on_after_the_step_it_gave_up(tmp_path):
    folder = tmp_path / "run"
    started(folder, SECURE, "rounds=5", between=3)
    experiment, outcome = resumed(folder)
    assert [row["missing_users"] for row in outcome.rows] == [0, 0, 300, 0, 0, 0]
    ledger = ledger_of(folder)
    assert [(line["name"], line["round"]) for line in ledger] == [
        ("spectral", 1),
        *(("gradient", t) for t in range(1, 6)),
    ]
    assert outcome.result["privacy"]["epsilon"] <= experiment.budget.epsilon


LOST = [
    ((), 1),
    (("privacy.clip=auto",), 1),
    (("privacy.clip=auto",), 3),
    (("algo=expmech", "rounds=1"), 1),
]


@pytest.mark.parametrize(("settings", "step"), LOST)
def test_what_nothing_can_be_learnt_without_is_not_released_again(tmp_path, settings, step):
    """The initialiser, the first clip norm, an only choice, under secure noise.

    All are refused for good, and nothing more is spent.
    """
    folder = tmp_path / "run"
    started(folder, SECURE, *settings, between=step)
    paid = ledger_of(folder)
    for _ in range(2):
        with pytest.raises(BudgetError, match="start a new run"):
            resumed(folder)
    assert ledger_of(folder) == paid


def test_a_line_torn_in_the_middle_was_never_let_out(tmp_path):
    folder = tmp_path / "run"
    started(folder, after=2)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"release": 3, "mechanism": "gau')
    whole = started(tmp_path / "whole")[1]
    assert told(folder, resumed(folder)[1]) == told(tmp_path / "whole", whole)


def test_a_ledger_that_was_cut_short_or_changed_is_refused(tmp_path):
    folder = tmp_path / "run"
    started(folder, after=3)
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    for content, words in (
        (lines[:1], "not the ledger of the 3 releases"),
        ([], "not the ledger of the 3 releases"),
        ([*lines[:2], "{}\n"], "line 3 cannot be read"),
        ([*lines[:2], "not json\n"], "line 3 cannot be read"),
    ):
        (folder / "ledger.jsonl").write_text("".join(content))
        with pytest.raises(ConfigError, match=words):
            resumed(folder)
    other = json.loads(lines[2]) | {"round": 7}
    (folder / "ledger.jsonl").write_text("".join([*lines, json.dumps(other) + "\n"]))
    with pytest.raises(ConfigError, match="line 4 was changed"):
        resumed(folder)


def test_a_checkpoint_that_cannot_be_read_is_refused(tmp_path):
    folder = tmp_path / "run"
    started(folder, after=2)
    whole = (folder / checkpoint.FILE).read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"x" * 100):
        (folder / checkpoint.FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be resumed"):
            resumed(folder)


def test_a_complete_run_is_not_resumed(tmp_path):
    folder = tmp_path / "run"
    experiment, outcome = started(folder)
    write_run(folder, experiment.cfg, outcome)
    assert not (folder / checkpoint.FILE).exists()
    with pytest.raises(ConfigError, match="complete"):
        recall(folder, [])


def test_two_processes_do_not_share_a_ledger(tmp_path):
    """While a run goes on, nobody resumes it, and nobody starts another in its folder."""
    folder, refusals = tmp_path / "run", []

    def meddle(row):
        for attempt in (lambda: resumed(folder), lambda: keep_previous(folder)):
            with pytest.raises(ConfigError, match="another process") as refusal:
                attempt()
            refusals.append(refusal)

    experiment = Experiment(compose(small()))
    folder.mkdir()
    write_config(folder, experiment.cfg)
    outcome = experiment.run(folder, meddle)
    assert len(refusals) == 2 * len(outcome.rows) and len(ledger_of(folder)) == len(outcome.rows)


def test_an_earlier_run_is_kept_with_what_its_users_remember(tmp_path):
    plan, folder = PLANS["centaur with a network"], tmp_path / "run"
    expected = told(tmp_path / "whole", started(tmp_path / "whole", *plan)[1])
    started(folder, *plan, after=2)
    keep_previous(folder)
    assert [path.name for path in folder.iterdir()] == ["previous-1"]
    assert told(folder / "previous-1", resumed(folder / "previous-1")[1]) == expected


def test_an_earlier_run_is_kept_with_all_it_needs_to_be_resumed(tmp_path):
    folder = tmp_path / "run"
    started(folder, after=2)
    Roster.of_simulated(300, 2).save(private_folder(folder) / "roster.json")
    keep_previous(folder)
    assert [path.name for path in folder.iterdir()] == ["previous-1"]
    kept = {path.name for path in (folder / "previous-1").iterdir()}
    assert kept == {"ledger.jsonl", checkpoint.FILE, "config.yaml", "private"}
    whole = started(tmp_path / "whole")[1]
    np.testing.assert_array_equal(resumed(folder / "previous-1")[1].model["U"], whole.model["U"])
