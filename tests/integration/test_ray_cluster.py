"""Ray over three raylets, each as on a machine of its own; one of them is lost during a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.processes import printed_by

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment

USERS, ROUNDS, NODES = 300, 40, 6
SIZE = ("data.d=20", "seed=3")
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, and ::1, as Linux writes them."""
TWO_RUNS = f"""
import json, os
from glob import glob
from pathlib import Path

import bench_cluster
from raylets import Raylets, words

def told_to_listen(pids):
    "Local addresses, in hexadecimal, that these processes listen on."
    files = [file for pid in pids for file in glob(f"/proc/{{pid}}/fd/*")]
    mine = {{os.readlink(file) for file in files if os.path.islink(file)}}
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{{kind}}").read_text().splitlines()[1:]:
            field = line.split()
            if field[3] == "0A" and f"socket:[{{field[9]}}]" in mine:
                yield field[1].partition(":")[0]

def told(outcome, watch):
    return {{
        "U": outcome.model["U"].tolist(),
        "result": outcome.result,
        "missing": [row["missing_users"] for row in outcome.rows],
        "noise": [row["noise_std"] for row in outcome.rows],
        "cohorts": [row["cohorts"] for row in outcome.rows],
        "victim": watch.victim,
    }}

with Raylets(count=3, cpus=3) as raylets:
    found = {{}}
    for lose in (None, "kill"):
        made = bench_cluster.over_raylets(
            raylets, {USERS}, {ROUNDS}, lose, pause=1.0, overrides={SIZE!r}
        )
        found[str(lose)] = told(*made)
        if lose is None:
            found["listening"] = sorted(set(told_to_listen([*raylets.theirs, os.getpid()])))
    theirs = raylets.theirs
found["left"] = [pid for pid in theirs if any("ray" in word for word in words(pid))]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """What two runs over one cluster told, the second with a raylet lost.

    They are in a process of their own, because it loads Ray. No process of Ray is left afterwards,
    even if the runs fail or take too long.
    """
    return json.loads(printed_by(TWO_RUNS).splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    """The same run in this process."""
    return Experiment(compose([f"data.n={USERS}", f"rounds={ROUNDS}", *SIZE])).run()


@pytest.mark.slow
def test_cohorts_are_spread_over_raylets_and_the_numbers_are_those_of_one_process(found, alone):
    run = found["None"]
    assert all(len(each) == 3 and min(each) > 0 and sum(each) == NODES for each in run["cohorts"])
    assert run["missing"] == [0] * (ROUNDS + 1)
    np.testing.assert_allclose(run["U"], alone.model["U"], rtol=1e-8, atol=1e-10)
    assert run["result"]["metrics"]["mse"] == pytest.approx(
        alone.result["metrics"]["mse"], rel=1e-8
    )
    assert "notes" not in run["result"]


@pytest.mark.slow
def test_a_lost_raylet_costs_its_users_contributions_until_others_have_taken_its_cohorts(
    found, alone
):
    run, victim = found["kill"], found["kill"]["victim"]
    missing, lost = run["missing"], run["cohorts"][0][victim]
    assert victim > 0 and lost > 0 and sum(run["cohorts"][0]) == NODES
    gone = [i for i, users in enumerate(missing) if users]
    assert (
        gone
        and gone[0] >= 4
        and max(missing) == lost * USERS // NODES
        and all(users % (USERS // NODES) == 0 for users in missing)
    )
    assert missing[-1] == 0, "there was room: everybody came back"
    assert run["cohorts"][-1][victim] == 0 and sum(run["cohorts"][-1]) == NODES
    assert f"Users were missing in {len(gone)} of {ROUNDS + 1} steps" in run["result"]["notes"][0]


@pytest.mark.slow
def test_noise_budget_and_divisor_stay_as_planned_whoever_is_lost(found, alone):
    lost, whole = found["kill"], found["None"]
    planned = [row["noise_std"] for row in alone.rows]
    assert lost["noise"] == whole["noise"] == planned
    assert lost["result"]["privacy"] == whole["result"]["privacy"]
    assert lost["result"]["n_users"] == USERS and lost["result"]["rounds"] == ROUNDS
    U = np.array(lost["U"])
    np.testing.assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-10)
    errors = [each["result"]["metrics"]["mse"] for each in (lost, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=0.5) and errors[0] != errors[1]


@pytest.mark.slow
def test_all_listen_on_loopback_only_and_nothing_is_left_running(found):
    assert found["listening"] and set(found["listening"]) <= LOOPBACK
    assert found["left"] == []


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "os.kill(os.getpid(), 9)", "pause()"])
def test_nothing_is_left_of_code_that_fails_or_takes_too_long(ending, tmp_path):
    path = tmp_path / "pid"
    code = f"""
import os, subprocess, sys
from signal import pause
line = [sys.executable, "-c", "import time; time.sleep(60)"]
process = subprocess.Popen(line, start_new_session=True)
with open({str(path)!r}, "w") as file:
    file.write(str(process.pid))
{ending}
"""
    with pytest.raises(AssertionError):
        printed_by(code, within=2)
    assert not running(int(path.read_text()))


def running(pid):
    """Return whether a process has not ended; one whose end nobody has asked for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
