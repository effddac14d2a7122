"""Grey-box replay: run an experiment with one user in another guise, and record the noise gate.

The first run is recorded: what entered the gate, what left it, and everything else that is public.
In every other run one user has other data, or is absent, or its node lies, and the gate returns the
values of the first run. So both runs have the same public history, and the sums before noise can be
compared at every release. If anything public still differs, it did not come through the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from privfed.audit.guise import COHORT, CROWD, ITSELF, SINGLE, Guise
from privfed.audit.recording import Known, Recorder, RecordingRuntime, WatchedSource, overheard
from privfed.audit.transcript import Call, Transcript
from privfed.config.instantiation import Settings
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError
from privfed.privacy.gate import NoiseGate
from privfed.privacy.noise import NoiseSource

LEAST = 6
"""Least number of users for these three nodes."""


def roster_for(n: int) -> Roster:
    """Return a roster of n simulated users on the three nodes of a replay; the last is alone.

    Most users are on the node of the user that changes: it must be larger than the blocks in which
    users are computed.
    """
    crowd = max(2, n // 4)
    sizes = {CROWD: crowd, COHORT: n - crowd - 1, SINGLE: 1}
    return Roster(Member(name, users, new_token(), simulated=True) for name, users in sizes.items())


class Theatre:
    """Configured experiment that is run many times; everything that it publishes is public.

    Args:
        cfg: configuration of the experiment.

    Raises:
        ConfigError: too few users, real users, or secret coins that cannot be repeated.
    """

    shares_answers = True
    """Whether nodes without a guise say the same in all runs, so that they need not be asked."""

    def __init__(self, cfg: DictConfig) -> None:
        n = cfg.data.n
        if not isinstance(n, int) or n < LEAST:
            raise ConfigError.of("data.n", n, f"a replay needs at least {LEAST} simulated users")
        self.cfg, self.roster = cfg, roster_for(n)
        self.experiment = Experiment(cfg, self.roster)
        federation = self.experiment.federation
        federation.strict, federation.personal, federation.publish = False, False, True
        if not self.experiment.data.simulated:
            raise ConfigError(
                "data: a replay changes users' data, so it needs simulated ones, as "
                "data=synthetic has them"
            )
        self.gate: NoiseGate = federation.gate
        by_coins = any(step.phase.sampling < 1 for step in self.experiment.strategy.plan)
        if by_coins and not self.gate.source.repeatable:
            raise ConfigError(
                "privacy.noise: who takes part is decided by secret coins; a replay needs "
                "privacy.noise=seeded"
            )
        self.guarantee: str = self.experiment.strategy.guarantee or cfg.algo.guarantee
        factory = self.experiment.factory
        self._client = resolved(factory.client)
        self._init = resolved(factory.init) if factory.init is not None else lambda: None
        self._known: Known = {}

    def serving(self, cohort: Any) -> Any:
        """Return a client for a cohort, as :meth:`ClientFactory.serving` does."""
        return self._client(cohort=cohort, init=self._init())

    def dressed(self, guise: Guise) -> Experiment:
        """Return the experiment to run for a guise, before anything was released."""
        return self.experiment

    def play(self, guise: Guise = ITSELF, script: list[Call] | None = None) -> Transcript:
        """Run the experiment once.

        Args:
            guise: what takes one user's place.
            script: calls of the gate whose outputs are repeated; None for fresh ones.

        Returns:
            What the run showed. A run that failed says so in `stopped`.
        """
        seen = Transcript()
        base = self.dressed(guise)
        source = WatchedSource(base.federation.gate.source, lambda: experiment.ledger, seen)
        experiment = base.renewed(source)
        # Errors on fresh public users follow from the shared parameters, which are compared.
        experiment.watches = False
        strategy = experiment.strategy
        seen.planned = [
            (name, step.round) for step in strategy.plan for name, _ in strategy.costs(step)
        ]
        known = self._known if self.shares_answers else {}
        experiment.runtime = RecordingRuntime(seen, self.serving, guise, known)
        Recorder(experiment, seen, script)
        try:
            with overheard(seen.said):
                outcome = experiment.run()
        except Exception as error:
            seen.stopped = f"{type(error).__name__}: {error}"
            return seen
        finally:
            seen.ledger = list(experiment.ledger.releases)
        fleeting = ("time", "peak_rss_mb")
        seen.published = {
            "model": outcome.model,
            "clip norms": strategy.clips,
            "memory": strategy.memory(),
            "rows": [
                {key: value for key, value in row.items() if key != "seconds"}
                for row in outcome.rows
            ],
            "result": {key: value for key, value in outcome.result.items() if key not in fleeting},
        }
        return seen

    def run_in(
        self, folder: Path, source: NoiseSource, watch: Callable[[Experiment], None], resume: bool
    ) -> None:
        """Run the experiment once in a folder, with ledger and checkpoint.

        Args:
            folder: folder of the run.
            source: source of noise.
            watch: called with the experiment before it runs.
            resume: whether to continue the run in the folder.
        """
        experiment, seen = self.experiment.renewed(source), Transcript()
        experiment.watches = False
        experiment.runtime = RecordingRuntime(seen, self.serving, ITSELF, self._known)
        watch(experiment)
        with overheard(seen.said):
            experiment.run(folder, resume=resume)


def resolved(node: Settings) -> Callable[..., Any]:
    """Return the constructor named by `_target_` with its configured arguments.

    It is looked up once, since a search makes thousands of objects.
    """
    made = instantiate(node, _partial_=True)
    return partial(made.func, *made.args, **made.keywords)
