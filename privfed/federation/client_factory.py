"""Make the client of a node from settings alone.

The same factory works in this process, in a worker process and on another machine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from flwr.client import Client
from flwr.common import NDArrays
from omegaconf import DictConfig, OmegaConf

from privfed.config.instantiation import Settings, algorithm_settings, build, filled
from privfed.data.cohort import UserCohort
from privfed.data.source import DataSource
from privfed.federation.head_store import HeadStore
from privfed.federation.masked_client import MaskedClient, simulated_key
from privfed.federation.node_settings import Welcome
from privfed.federation.plan import Plan
from privfed.federation.roster import Member
from privfed.federation.user_state import Memory
from privfed.foundation.compilation import Job, expect
from privfed.foundation.linalg import Array
from privfed.secure.node import SecureNode

SEEDED, BY_TOKEN = "seed", "token"
TYPICAL_ROWS = 20
"""Rows of one real user, for the estimate of how much there is to compute."""


class ServingClient(Protocol):
    """What the federation needs to know of the client that serves a node's users."""

    cohort: Any
    memory: Memory | None
    """What users keep from round to round, if the algorithm needs it."""
    store: HeadStore | None
    """Where users keep their own predictors, if a folder was given."""
    takes_rows: bool
    """Whether the client can learn from rows of a table."""

    def to_client(self) -> Client:
        """Return the same client for Flower's messages."""
        ...

    def weights(self, block: Any, shared: NDArrays) -> Array:
        """Return the users' own predictors (B, d), given the published model."""
        ...


@dataclass(frozen=True)
class ClientFactory:
    """Makes clients. It holds plain settings only, so it can be pickled or sent as JSON.

    Attributes:
        client: settings of the client, with its `_target_`.
        init: settings of the initialiser's client side, if there is one.
        data: settings of the data source, with its `_target_`.
        seed: seed of the run.
        rounds: rounds of the run, which tell how much a node has to compute; 0 where not known.
        candidates: candidates per round, where users score some.
        private: folder where nodes keep what their users remember from round to round; in memory
            only unless given.
        plan: what nodes will be asked, where they are told beforehand.
        run: number of the run, likewise.
        secure: how nodes of simulated users find their keys under secure aggregation: by the seed,
            or by their token; empty without secure aggregation.
        terms: the frame of secure aggregation that nodes in other processes are told, as JSON.
        given_source: data source that was made before; made from the settings unless given. It
            stays in this process: it is neither compared nor pickled.
    """

    client: Settings
    init: Settings | None
    data: Settings
    seed: int
    rounds: int = 0
    candidates: int = 0
    private: str | None = None
    plan: Plan | None = field(default=None, compare=False, repr=False)
    run: str = field(default="", compare=False)
    secure: str = ""
    terms: str = field(default="", compare=False, repr=False)
    given_source: DataSource | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, cfg: DictConfig, source: DataSource | None = None) -> ClientFactory:
        """Take from a configuration what nodes need to know.

        Args:
            cfg: resolved configuration of a run.
            source: data source that was made before.
        """
        client = filled(cfg.algo.client, algorithm_settings(cfg))
        init = filled(cfg.init.client, cfg.init) if cfg.init.client else None
        data = OmegaConf.to_container(cfg.data)
        counts = (cfg.rounds, cfg.algo.get("candidates"))
        rounds, candidates = (count if isinstance(count, int) else 0 for count in counts)
        return cls(
            client,
            init,
            data,  # type: ignore[arg-type]
            cfg.seed,
            rounds,
            candidates,
            given_source=source,
        )

    @classmethod
    def from_welcome(cls, welcome: Welcome) -> ClientFactory:
        """Take the settings that the server sent."""
        return cls(
            welcome.client,
            welcome.init,
            welcome.data,
            welcome.seed,
            welcome.rounds,
            welcome.candidates,
        )

    @cached_property
    def source(self) -> DataSource:
        """The data source; once it is known, so is how much there is to compute.

        How many rows real users have must not decide what is logged, so a public figure stands in.
        """
        source: DataSource = self.given_source or build(self.data, "data")(seed=self.seed)
        m = source.m if source.simulated else TYPICAL_ROWS
        if self.rounds and isinstance(m, int):
            k = self.data.get("k")
            size = k if isinstance(k, int) else 1
            expect(Job(source.n, m, source.d, size, self.rounds, self.candidates))
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        counts = (self.rounds, self.candidates)
        return ClientFactory, (
            self.client,
            self.init,
            self.data,
            self.seed,
            *counts,
            self.private,
            None,
            self.run,
            self.secure,
        )

    def keeping(self, folder: Path) -> ClientFactory:
        """Return the same factory for nodes that keep what their users remember in a folder."""
        return replace(self, private=str(folder), given_source=self.source)

    def planned(self, plan: Plan) -> ClientFactory:
        """Return the same factory for a run with this plan, under a fresh random number."""
        return replace(self, plan=plan, run=secrets.token_hex(16), given_source=self.source)

    def __call__(self, users: range) -> Any:
        """Make the client of a node, with the data of its users only.

        Args:
            users: public numbers of the users behind the node.
        """
        client = self.serving(self.source.cohort(users.start, users.stop))
        if self.private is not None and client.memory is not None:
            client.memory.keep_in(Path(self.private))
        return client

    def node(self, member: Member, users: range) -> Client:
        """Make the Flower client of a node of simulated users.

        Args:
            member: the node.
            users: public numbers of its users.
        """
        client: Client = self(users).to_client()
        if not self.secure:
            return client
        key = simulated_key(member.name, member.token, self.seed, self.secure == SEEDED)
        return MaskedClient(client, SecureNode(key))

    def welcome(
        self,
        users: range,
        about: str = "the federation",
        published: bool = False,
        simulated: bool = False,
    ) -> Welcome:
        """Return what a node in another process makes its client from.

        Args:
            users: public numbers of the users behind the node.
            about: description of the federation, for people.
            published: whether the node only receives a finished model.
            simulated: whether the users of the node are registered as simulated.
        """
        source = self.source
        columns = source.columns
        return Welcome(
            client=self.client,
            init=self.init,
            data=source.told(dict(self.data), simulated),
            seed=self.seed,
            rounds=self.rounds,
            candidates=self.candidates,
            users=users,
            d=source.d,
            columns=None if columns is None else [str(name) for name in columns],
            error=source.error,
            about=about,
            published=published,
            simulated=simulated,
            plan=None if published or self.plan is None else self.plan.to_dict(),
            run="" if published else self.run,
            secure="" if published else self.secure,
            terms="" if published else self.terms,
        )

    def serving(self, cohort: UserCohort) -> Any:
        """Make a client for the users of a cohort."""
        init = None if self.init is None else build(self.init, "init")()
        return build(self.client, "algo")(cohort=cohort, init=init)
