"""Command line: compose the configuration, run one experiment, write its folder.

python -m privfed.run algo=fedrep eps=1
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, add_general, add_settings, guarded, use_config_dir
from privfed.foundation.errors import ConfigError

EXAMPLES = """
examples:
  python -m privfed.run
      Private FedRep at eps=1 on the built-in problem
  python -m privfed.run eps=0.25 seed=3 out=runs/low
      a tighter budget, into a folder of your choice
  python -m privfed.run eps=inf
      the same code without privacy
  python -m privfed.run algo=altmin init=pairs
      another algorithm, with another initialiser
  python -m privfed.run algo=standalone
      every user alone
  python -m privfed.run data=table data.path=my.csv data.user=id data.target=rating eps=2
      your own table
  python -m privfed.run preset=pmpr
      the paper's own hyper-parameters
  python -m privfed.run data.n=200000 runtime.nodes=8
      more users, on eight nodes
  python -m privfed.run privacy.clip=auto
      clip norms by private quantiles, charged to the budget
  python -m privfed.run -m eps=1,2,4 seed=0,1,2
      every combination, one run per core, and a page that compares them
  python -m privfed.run --help algo=altmin
      the settings of another algorithm
  python -m privfed.run --plan eps=2
      what would be released and at what cost; releases nothing

exit codes: 0 done; 2 bad configuration or data; 3 privacy budget refused; 1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m privfed.run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Learn one shared representation under user-level differential privacy; "
        "every user keeps a private head.",
    )
    add_settings(parser)
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
    add_general(parser)
    if {"-h", "--help"} & set(arguments):
        from privfed.config.help import settings_help

        parser.epilog = settings_help(arguments) + EXAMPLES
    return parser.parse_intermixed_args(arguments)


def _execute(options: argparse.Namespace) -> None:
    from privfed.config.composition import compose
    from privfed.config.saved_config import recall

    resumed = None if options.resume is None else Path(options.resume)
    use_config_dir(options.config_dir)
    if options.multirun or _is_sweep(resumed):
        _sweep(options, resumed)
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

    from privfed.experiment.run_folder import carry_out, start_folder
    from privfed.report import loggers

    loggers.chosen(cfg)
    folder = resumed or start_folder(cfg, cfg.out, cfg.algo.name)
    with console.RunProgress(experiment, quiet=options.quiet) as progress:
        carry_out(experiment, folder, resumed is not None, progress.step)
    if not options.quiet:
        console.show_summary(json.loads((folder / "result.json").read_text()), folder)


def _is_sweep(folder: Path | None) -> bool:
    """Return whether the folder to continue is that of a sweep."""
    return folder is not None and (folder / "sweep.json").exists()


def _sweep(options: argparse.Namespace, resumed: Path | None) -> None:
    """Do the runs of a sweep instead of one run."""
    from privfed.experiment import sweep

    if options.plan:
        raise ConfigError("--plan: shows one run; leave out -m, and give one value a key")
    if resumed is not None and options.overrides:
        raise ConfigError(
            f"{options.overrides[0]}: a resumed sweep keeps its settings; give none beside --resume"
        )
    if resumed is not None and not _is_sweep(resumed):
        raise ConfigError(f"--resume {resumed}: there is no sweep in that folder")
    sweep.execute(options.overrides, options.config_dir, options.jobs, resumed, options.quiet)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one run or a sweep; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(
        lambda: _execute(options),
        "interrupted; nothing is lost, go on with --resume and the run's folder",
    )
