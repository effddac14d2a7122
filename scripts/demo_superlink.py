"""Run a demo federation on this machine: a SuperLink with TLS, SuperNodes with registered keys.

    python scripts/demo_superlink.py runtime.nodes=3 eps=1 rounds=4

Every command that is run is printed.
"""

from __future__ import annotations

import sys

from privfed.commands.parsing import guarded
from privfed.config.composition import compose
from privfed.experiment.run_folder import carry_out, start_folder
from privfed.experiment.wiring import Experiment
from privfed.report import console

SMALL = ("data.n=200", "rounds=3")


def show(command: str) -> None:
    print(f"$ {command}", flush=True)


def demo() -> None:
    cfg = compose(["runtime=superlink", *SMALL, *sys.argv[1:]])
    experiment = Experiment(cfg)
    folder = start_folder(cfg, cfg.out, cfg.algo.name)
    with console.RunProgress(experiment) as progress:
        carry_out(experiment, folder, False, progress.step, say=show)
    print(f"written to {folder}")


if __name__ == "__main__":
    sys.exit(
        guarded(demo, "interrupted; go on with python -m privfed.run --resume and the run's folder")
    )
