"""Command line: compose the configuration, run one experiment, write its folder.

python -m privfed.run algo=fedrep eps=1
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privfed import __version__
from privfed.commands.parsing import Parser, guarded
from privfed.foundation.errors import ConfigError

EXAMPLES = """
examples:
  python -m privfed.run                                  Private FedRep at eps=1 on the built-in problem
  python -m privfed.run eps=0.25 seed=3 out=runs/low     a tighter budget, into a folder of your choice
  python -m privfed.run eps=inf                          the same code without privacy
  python -m privfed.run algo=altmin init=pairs           another algorithm, with another initialiser
  python -m privfed.run algo=standalone                  every user alone
  python -m privfed.run data=table data.path=my.csv data.user=id data.target=rating eps=2    your own table
  python -m privfed.run preset=pmpr                      the paper's own hyper-parameters
  python -m privfed.run data.n=200000 runtime.nodes=8    more users, on eight nodes
  python -m privfed.run privacy.clip=auto                clip norms by private quantiles, charged to the budget
  python -m privfed.run -m eps=1,2,4 seed=0,1,2          every combination, a run a core, and a page that compares them
  python -m privfed.run --help algo=altmin               the settings of another algorithm
  python -m privfed.run --plan eps=2                     what would be released and at what cost; releases nothing

exit codes: 0 done; 2 bad configuration or data; 3 privacy budget refused; 1 anything else
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line; everything else is key=value."""
    parser = Parser(
        prog="python -m privfed.run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Learn one shared representation under user-level differential privacy; every user keeps a private head.",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, for example algo=fedrep eps=1"
    )
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder with configs of your own (algo/mine.yaml, ...)",
    )
    parser.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="a run for each combination of values with commas",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs of a sweep at a time; one more than there are cores",
    )
    parser.add_argument(
        "--plan", action="store_true", help="show what would be released, then stop"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with an interrupted run or sweep, from its folder"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--version", action="version", version=f"privfed {__version__}")
    if {"-h", "--help"} & set(arguments):
        from privfed.config.help import settings_help

        parser.epilog = settings_help(arguments) + EXAMPLES
    return parser.parse_intermixed_args(arguments)


def prepare_folder(out: object, algo: str) -> Path:
    """A writable folder for the run; by default a new one under runs/."""
    name = str(out) if out is not None else f"runs/{algo}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, i = Path(name), 2
    try:
        while out is None and folder.exists():
            folder, i = Path(f"{name}-{i}"), i + 1
        folder.mkdir(parents=True, exist_ok=out is not None)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError.of("out", name, f"cannot write there ({error.strerror})") from error
    return folder


def execute(options: argparse.Namespace) -> None:
    """Run what was asked for."""
    from privfed.config.composition import compose
    from privfed.config.run_config import recall

    resumed = None if options.resume is None else Path(options.resume)
    if options.config_dir is not None:
        sys.path.insert(0, options.config_dir)
        os.environ["PRIVFED_CONFIG_DIR"] = str(
            Path(options.config_dir).resolve()
        )  # for processes that a runtime starts
    if options.multirun or is_sweep(resumed):
        sweep(options, resumed)
        return
    if options.jobs is not None:
        raise ConfigError(f"--jobs {options.jobs}: is for a sweep; add -m")
    cfg = (
        compose(options.overrides, options.config_dir)
        if resumed is None
        else recall(resumed, options.overrides)
    )

    from privfed.experiment.wiring import Experiment
    from privfed.report import console

    if cfg.data.get("describe"):
        console.show_table(cfg)
        return
    experiment = Experiment(cfg)
    if options.plan:
        console.show_plan(experiment)
        return

    from privfed.report import loggers
    from privfed.report.run_files import keep_previous, write_config

    loggers.chosen(cfg)
    folder = resumed or prepare_folder(cfg.out, cfg.algo.name)
    if resumed is None:
        keep_previous(folder)
        write_config(folder, cfg)
    with console.Progress(experiment, quiet=options.quiet) as progress:
        carry_out(experiment, folder, resumed is not None, progress.step)
    if not options.quiet:
        console.show_summary(json.loads((folder / "result.json").read_text()), folder)


def is_sweep(folder: Path | None) -> bool:
    """Whether the folder to go on with is that of a sweep."""
    return folder is not None and (folder / "sweep.json").exists()


def sweep(options: argparse.Namespace, resumed: Path | None) -> None:
    """Many runs instead of one."""
    from privfed.experiment import sweep

    if options.plan:
        raise ConfigError("--plan: shows one run; leave out -m, and give one value a key")
    if resumed is not None and options.overrides:
        raise ConfigError(
            f"{options.overrides[0]}: a resumed sweep keeps its settings; give none beside --resume"
        )
    if resumed is not None and not is_sweep(resumed):
        raise ConfigError(f"--resume {resumed}: there is no sweep in that folder")
    sweep.execute(options.overrides, options.config_dir, options.jobs, resumed, options.quiet)


def carry_out(
    experiment: Any, folder: Path, resume: bool, on_step: Callable[[Any], None] = lambda row: None
) -> None:
    """Do the run in its folder, which has its configuration already, and write everything else."""
    from privfed.report import loggers
    from privfed.report.run_files import write_run

    books = loggers.chosen(experiment.cfg)
    books.start(experiment.cfg, folder)

    def step(row: dict[str, Any]) -> None:
        on_step(row)
        books.step(row)

    launch = getattr(experiment.runtime, "launch", None)
    if launch is not None:  # the run happens, and is written, in other processes
        launch(experiment, folder, step, resume=resume)
    else:
        write_run(folder, experiment.cfg, experiment.run(folder, step, resume=resume))
    books.end(json.loads((folder / "result.json").read_text()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one command."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(
        lambda: execute(options),
        "interrupted; nothing is lost, go on with --resume and the run's folder",
    )
