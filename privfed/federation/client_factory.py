"""How a node makes its client from settings alone: the same in this process, in a worker and on
another machine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privfed.config.instantiation import Settings, build
from privfed.data.cohort import Cohort
from privfed.foundation.compilation import Job, expect


def _plain(settings: Any) -> Any:
    return OmegaConf.to_container(settings) if settings else None


@dataclass(frozen=True)
class NodeFactory:
    """Makes clients. Holds plain settings only, what to make by `_target_`: it can be pickled, or
    sent as JSON.
    """

    client: Settings
    init: Settings | None
    data: Settings
    seed: int
    private: str | None = None
    """The folder where nodes keep what their users remember from round to round, besides in memory.
    """
    rounds: int = 0
    """Rounds of the run, and candidates per round where it selects: what a node may expect to
    compute.
    """
    candidates: int = 0

    @classmethod
    def of(cls, cfg: DictConfig) -> NodeFactory:
        """What nodes need to know of a configuration."""
        client, init, data = (_plain(part) for part in (cfg.algo.client, cfg.init.client, cfg.data))
        rounds, candidates = (
            count if isinstance(count, int) else 0
            for count in (cfg.rounds, cfg.algo.get("candidates"))
        )
        return cls(client, init, data, cfg.seed, rounds=rounds, candidates=candidates)

    @cached_property
    def source(self) -> Any:
        """Where the users' data come from."""
        source = build(self.data, "data")(seed=self.seed)
        if self.rounds:
            n, m, d, k = (int(getattr(source, name, 0) or 0) for name in ("n", "m", "d", "k"))
            expect(Job(n, m, d, k or 1, self.rounds, self.candidates))
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeFactory, tuple(getattr(self, field.name) for field in fields(self))

    def keeping(self, folder: Path) -> NodeFactory:
        """The same, with nodes that keep what their users remember in this folder; data need not be
        made again.
        """
        made = replace(self, private=str(folder))
        made.__dict__["source"] = self.source
        return made

    def __call__(self, users: range) -> Any:
        """The client of a node that serves these users, with only their data."""
        client = self.serving(self.source.cohort(users.start, users.stop))
        if self.private is not None and client.memory is not None:
            client.memory.keep_in(Path(self.private))
        return client

    def welcome(
        self,
        users: range,
        about: str = "the federation",
        published: bool = False,
        simulated: bool = False,
    ) -> dict[str, Any]:
        """What a node in another process makes its client from: settings, and the public numbers of
        its users.

        published: the node only takes a finished model. simulated: its users are registered as
        simulated ones.
        """
        data = self.source
        return {
            "client": self.client,
            "init": self.init,
            "data": self.data,
            "seed": self.seed,
            "users": [users.start, users.stop],
            "d": data.d,
            "columns": getattr(data, "columns", None),
            "error": data.error,
            "about": about,
            "published": published,
            "simulated": simulated,
        }

    def serving(self, cohort: Cohort) -> Any:
        """A client for these users."""
        init = None if self.init is None else build(self.init, "init")()
        return build(self.client, "algo")(cohort=cohort, init=init)
