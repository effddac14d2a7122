"""Play the real mechanism many times against a hostile user, and compare with what it claims.

python -m privfed.audit algo=fedrep eps=1
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfed.commands.parsing import (
    Parser,
    add_general,
    add_settings,
    check_trusted,
    failures_refute,
    guarded,
    use_config_dir,
)
from privfed.foundation.errors import ConfigError, RefutedError, check_number, check_whole

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from privfed.experiment.wiring import Experiment
    from privfed.report.audit_page import Curves

DESCRIPTION = """\
Audit a privacy claim as an attacker would. The run's real strategy, noise gate and ledger are
played again and again on a few users, one of whom is hostile and sends one thing or its opposite;
how well the two can be told apart from everything that was released gives a lower bound on
epsilon, beside the epsilon that the ledger claims. Some repetitions play the real clients, too: one
of their users is one of the two worst people that a search finds.
"""
EPILOG = """
examples:
  python -m privfed.audit algo=fedrep eps=4
      10,000 repetitions, about two minutes
  python -m privfed.audit algo=altmin eps=2 --repetitions 2000
      any algorithm, and your own with --config-dir
  python -m privfed.audit privacy.noise=discrete
      with the exact noise that real users get
  python -m privfed.audit --one-run --canaries 1000 eps=8
      many hostile users in one single run

Settings are those of privfed run; data.n, data.d, data.d1 and data.d2 are small unless given:
privacy does not depend on them. All is played in this process and its forks, whatever the runtime.
A repetition is one whole run with each of the canary's messages, with noise of its own. Written
into `out`: result.json, audit.html, ledger.jsonl (of one run), config.yaml.

A run that fails on a hostile user is refuted.

exit codes: 0 consistent; 4 the claim is refuted; 2 bad configuration; 3 privacy budget refused;
1 anything else
"""
FEWEST = 40
"""Least number of repetitions: with fewer, no bound says anything."""
SHARE, FEWEST_CLIENTS = 25, 24
"""One in SHARE repetitions plays real clients if they are fast; at least FEWEST_CLIENTS do."""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m privfed.audit",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_settings(parser)
    parser.add_argument(
        "--repetitions",
        type=int,
        default=10_000,
        metavar="N",
        help="how often both worlds are played (10000)",
    )
    parser.add_argument(
        "--client-repetitions",
        type=int,
        metavar="N",
        help="how often real clients play (a 25th of --repetitions, 24 for networks; 0: never)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.999,
        metavar="P",
        help="of the verdict as a whole (0.999)",
    )
    parser.add_argument(
        "--one-run",
        action="store_true",
        help="a single run with many canaries instead of repetitions",
    )
    parser.add_argument(
        "--canaries", type=int, metavar="M", help="hostile users of --one-run (1000)"
    )
    add_general(parser)
    return parser.parse_intermixed_args(arguments)


def compose_small(
    overrides: Sequence[str], config_dir: str | None, users: int, features: int
) -> DictConfig:
    """Compose a configuration with few users and features, on which privacy does not depend.

    Args:
        overrides: settings, which win.
        config_dir: see :func:`privfed.config.composition.compose`.
        users: number of users unless the settings say otherwise.
        features: number of features unless the settings say otherwise.
    """
    from privfed.config.composition import compose

    cfg = compose(overrides, config_dir)
    check_trusted(cfg)
    wide = max(features, _known_dimension(cfg))
    least = {"n": users, "d": wide, "d1": wide, "d2": wide}
    given = {override.partition("=")[0] for override in overrides}
    more = [
        f"data.{key}={value}"
        for key, value in least.items()
        if key in cfg.data and f"data.{key}" not in given
    ]
    return compose([*overrides, *more], config_dir)


def _known_dimension(cfg: DictConfig) -> int:
    """Return k if it is known in advance, otherwise 1."""
    k = cfg.model.get("k", 1)
    return k if isinstance(k, int) else 1


def check_claim(experiment: Experiment) -> None:
    """Check that an experiment claims something that a hostile user could refute.

    Raises:
        ConfigError: if it does not.
    """
    cfg, strategy = experiment.cfg, experiment.strategy
    guarantee = strategy.guarantee or cfg.algo.guarantee
    if math.isinf(experiment.budget.epsilon):
        raise ConfigError.of("eps", "inf", "nothing is claimed, so there is nothing to audit")
    if guarantee == "none":
        raise ConfigError.of(
            "algo", cfg.algo.name, "claims no privacy, so there is nothing to audit"
        )
    if not strategy.plan:
        raise ConfigError.of(
            "algo", cfg.algo.name, "releases nothing, so there is nothing to audit"
        )
    sampling = min(step.phase.sampling for step in strategy.plan)
    if sampling < 1:
        allowed = (
            "a canary takes part in every round, while the claim rests on coins; "
            "audit with algo.sampling=1"
        )
        raise ConfigError.of("algo.sampling", sampling, allowed)
    if guarantee != "worst-case":
        raise ConfigError.of(
            "algo", cfg.algo.name, f"its claim holds {guarantee} only, which a hostile user breaks"
        )


def _set_up(options: argparse.Namespace) -> Experiment:
    """Make the experiment that is audited."""
    from privfed.audit.canary import population
    from privfed.experiment.wiring import Experiment
    from privfed.federation.client_factory import ClientFactory
    from privfed.federation.roster import Roster

    if options.one_run:
        m = options.canaries
        if any(override.startswith("data.n=") for override in options.overrides):
            raise ConfigError(
                "data.n: --one-run has no other users than its canaries; set --canaries"
            )
        cfg = compose_small(options.overrides, options.config_dir, m, 0)
        if "n" not in cfg.data:
            raise ConfigError(
                "--one-run: every user has to be a canary, "
                "and these data have users of their own; leave it out"
            )
        coordinates = (2 if "d1" in cfg.data else 1) * _known_dimension(cfg)
        features = math.ceil(m / coordinates)  # one coordinate per canary
        cfg = compose_small(options.overrides, options.config_dir, m, features)
        return Experiment(cfg, Roster.of_simulated(m, m))

    def build(users: int) -> Experiment:
        cfg = compose_small(options.overrides, options.config_dir, users, 4)
        n = check_whole("data.n", cfg.data.n) if "n" in cfg.data else ClientFactory.of(cfg).source.n
        return Experiment(cfg, population(n))

    try:
        return build(4)
    except ConfigError:
        # An algorithm that asks another group of users in every round needs more of them.
        rounds = compose_small(options.overrides, options.config_dir, 4, 4).rounds
        if not isinstance(rounds, int) or rounds <= 4:
            raise
        return build(rounds)


def _execute(options: argparse.Namespace) -> None:
    check_number(
        "--confidence",
        options.confidence,
        lambda x: 0.5 <= x < 1,
        "must be at least 0.5 and below 1",
    )
    check_whole("--repetitions", options.repetitions, FEWEST)
    if options.client_repetitions:
        check_whole("--client-repetitions", options.client_repetitions, FEWEST_CLIENTS)
    if options.canaries is not None and not options.one_run:
        raise ConfigError.of(
            "--canaries", options.canaries, "is for --one-run; otherwise there is one canary"
        )
    options.canaries = check_whole(
        "--canaries", 1000 if options.canaries is None else options.canaries, 10
    )
    use_config_dir(options.config_dir)
    experiment = _set_up(options)
    check_claim(experiment)

    from privfed.experiment.run_folder import start_folder

    cfg = experiment.cfg
    folder = start_folder(cfg, cfg.out, f"audit-{cfg.algo.name}")
    experiment.federation.ready = time.perf_counter()
    experiment.federation.on_step = experiment.keep_record
    experiment.federation.quorum = 0.0  # a silent canary does not stop a run
    experiment.ledger.open(folder / "ledger.jsonl")
    method = by_one_run if options.one_run else by_repetitions
    try:
        with failures_refute("a run with a hostile user"):
            result, curves = method(experiment, options)
    finally:
        experiment.ledger.close()
    finish(folder, experiment, result, curves, options.quiet)


def by_repetitions(
    experiment: Experiment, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """Audit by many repetitions; return the result and the curves of its chart."""
    from privfed.audit.audit_verdict import audit_summary, examine, likelihood_weights
    from privfed.audit.canary import PLUS, CanaryStage
    from privfed.audit.repetitions import observations
    from privfed.audit.trade_off import curves_of
    from privfed.report.audit_console import AuditProgress

    stage = CanaryStage(experiment, options.repetitions)
    played = stage.play(experiment.strategy, PLUS)
    experiment.ledger.close()
    result = experiment.result({})
    weights = likelihood_weights(stage, played, experiment.ledger.releases)
    with AuditProgress(
        algo=experiment.cfg.algo.name,
        budget=experiment.budget,
        noise=experiment.federation.gate.source.name,
        releases=len(experiment.ledger.releases),
        repetitions=options.repetitions,
        quiet=options.quiet,
    ) as progress:
        seen = observations(stage, progress.done)
        clients = None if options.client_repetitions == 0 else with_clients(options)
    privacy, confidence = result["privacy"], options.confidence
    findings = examine(stage, seen, weights, privacy, confidence, clients)
    runs = sum(map(len, [*seen.values(), *(clients or {}).values()]))
    wrong = list(wrong_in_ledger(experiment, result))
    result["audit"] = audit_summary(findings, privacy, confidence, options.repetitions, runs, wrong)
    return result, curves_of(findings, result["audit"])


def wrong_in_ledger(experiment: Experiment, result: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the ledger of the first run, in words."""
    from privfed.audit.accounting_checks import price_findings
    from privfed.audit.transcript import Transcript

    strategy, releases = experiment.strategy, experiment.ledger.releases
    planned = [(name, step.round) for step in strategy.plan for name, _ in strategy.costs(step)]
    written = [(release.name, release.round) for release in releases]
    if planned != written:
        yield f"{len(planned)} releases were planned, the ledger has {len(written)}"
    yield from price_findings(
        Transcript(ledger=list(releases), published={"result": result}), experiment.budget
    )


def with_clients(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the observations of runs with real clients; None where data are not simulated."""
    from privfed.audit.client_canary import USERS, ClientStage
    from privfed.audit.repetitions import observations
    from privfed.config.composition import LINEAR, model_kind

    cfg = compose_small(options.overrides, options.config_dir, USERS, 4)
    if "n" not in cfg.data:
        return None
    repetitions = options.client_repetitions
    if repetitions is None:
        fast = model_kind(cfg) == LINEAR
        repetitions = max(FEWEST_CLIENTS, options.repetitions // SHARE if fast else 0)
    try:
        stage = ClientStage(cfg, repetitions)
    except ConfigError:
        # An algorithm that asks another group of users in every round needs more of them.
        if not isinstance(cfg.rounds, int) or cfg.rounds <= USERS:
            return None
        cfg = compose_small(options.overrides, options.config_dir, 2 * cfg.rounds, 4)
        stage = ClientStage(cfg, repetitions)
    return observations(stage)


def by_one_run(experiment: Experiment, options: argparse.Namespace) -> tuple[dict[str, Any], None]:
    """Audit in one run with many canaries; return the result and no curves."""
    from privfed.audit.one_run import guesses, one_run
    from privfed.foundation.seeding import generator

    coins = generator(experiment.cfg.seed, "canaries' coins").choice([-1.0, 1.0], options.canaries)
    scores = one_run(experiment, coins)
    experiment.ledger.close()
    result = experiment.result({})
    epsilon = result["privacy"]["epsilon"]
    audit = guesses(scores, coins, result["privacy"]["delta"], options.confidence)
    result["audit"] = audit | {
        "epsilon_claimed": epsilon,
        "consistent": audit["epsilon_lower"] <= epsilon,
    }
    return result, None


def finish(
    folder: Path,
    experiment: Experiment,
    result: dict[str, Any],
    curves: Curves | None,
    quiet: bool,
) -> None:
    """Write all files and say what was found.

    Raises:
        RefutedError: if the claim does not hold.
    """
    from omegaconf import OmegaConf

    from privfed.foundation.atomic_files import write_atomically
    from privfed.report.audit_console import audit_verdict, show_audit_summary
    from privfed.report.audit_page import audit_page
    from privfed.report.run_files import finite, write_result

    result["runtime"] = "inprocess"  # the server's side alone is played, without any network
    result["time"] = {"total_s": time.perf_counter() - experiment.started}
    result = finite(result)
    write_atomically(
        folder / "audit.html",
        audit_page(result, curves, OmegaConf.to_yaml(experiment.cfg)).encode(),
    )
    write_result(folder, result)
    if not quiet:
        show_audit_summary(result, folder)
    if not result["audit"]["consistent"]:
        raise RefutedError(audit_verdict(result["audit"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit a privacy claim; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options), "interrupted; an audit starts anew")
