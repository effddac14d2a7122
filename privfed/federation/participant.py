"""A node's side of a federation: prove who it is, make its client, answer the server's questions.

The settings that the server sends name the client by its `_target_`. Only targets that the
configuration files of this machine name are ever made: a server can choose among the installed
algorithms, but it cannot run code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Scalar,
    parameters_to_ndarrays,
)
from omegaconf import OmegaConf

from privfed import __version__
from privfed.config.option_groups import CONF
from privfed.data.cohort import Cohort
from privfed.data.tables.client_rows import has_users, read_own_rows
from privfed.federation.client_factory import ClientFactory, ServingClient
from privfed.federation.head_store import HeadStore
from privfed.federation.identity import Identity
from privfed.federation.node_settings import Welcome
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.linalg import Array


@dataclass(frozen=True)
class OwnRows:
    """File with the rows of real users.

    Attributes:
        path: CSV file with a header.
        target: column to predict.
        test: fraction of each user's rows, the last ones, that only judge the final model.
    """

    path: Path
    target: str
    test: float

    def read(
        self, name: str, users: int | None, welcome: Welcome
    ) -> dict[str, tuple[Array, Array]]:
        """Read the rows and check them against what the server expects.

        Args:
            name: name of the node, and of its user if it has only one.
            users: number of registered users; any number unless given.
            welcome: what the server sent.

        Returns:
            X (m, d) and y (m,) per user, by name.

        Raises:
            ConfigError: if the file cannot be read or does not fit.
        """
        alone = users == 1 or (users is None and not has_users(self.path))
        rows = read_own_rows(self.path, self.target, welcome.columns, name if alone else None)
        for user, (X, _) in rows.items():
            if X.shape[1] != welcome.d:
                raise ConfigError(
                    f"{self.path}: has {X.shape[1]} feature columns, the federation has {welcome.d}"
                )
            if len(X) != len(next(iter(rows.values()))[0]):
                raise ConfigError(
                    f"{self.path}: user {user!r} has {len(X)} rows, others have not; "
                    "give all the same number"
                )
        if users is not None and len(rows) != users:
            raise ConfigError(
                f"{self.path}: has rows of {len(rows)} user(s), "
                f"but {users} are registered for {name}"
            )
        return rows


class TurnedAwayError(PrivfedError):
    """The server refuses this client.

    Attributes:
        later: whether trying again may help.
    """

    exit_code = 2

    def __init__(self, reason: str, later: bool) -> None:
        super().__init__(f"the server turned this client away: {reason}")
        self.later = later


class Participant:
    """Answers the server's questions for the users of one node.

    Args:
        identity: name and token of the node.
        rows: file of the real users; None if the users are simulated as the server says.
        state: folder where heads and memories of the users are kept, if any.
        folders: folders of configuration files that name the targets which may be made.
        say: prints a line for the operator of the node.
    """

    def __init__(
        self,
        identity: Identity,
        rows: OwnRows | None,
        state: Path | None = None,
        folders: tuple[Path, ...] = (CONF,),
        say: Callable[[str], None] = print,
    ) -> None:
        self.identity, self.rows, self.state = identity, rows, state
        self.folders, self.say = folders, say
        self.made: ServingClient | None = None
        """The client that serves the users, once the server has sent its settings."""
        self.held_out: tuple[Array, Array] | None = None
        self._settings, self._error = "", "mse"

    @property
    def client(self) -> ServingClient:
        """The client that serves the users.

        Raises:
            PrivfedError: if the server has not sent its settings yet.
        """
        if self.made is None:
            raise PrivfedError("the server asked before it sent its settings")
        return self.made

    def properties(self, question: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Answer a question of the admission protocol.

        Args:
            question: a challenge (`hello`), settings (`welcome`), or a reason to leave (`refused`).

        Raises:
            TurnedAwayError: if the server refuses this node.
            ConfigError: if the server runs another version, or its settings are not accepted.
        """
        if "refused" in question:
            raise TurnedAwayError(str(question["refused"]), bool(question.get("later")))
        if "welcome" in question:
            self.welcome(str(question["welcome"]))
            return {"ready": True}
        challenge = question.get("hello")
        if not isinstance(challenge, bytes) or question.get("version") != __version__:
            theirs = str(question.get("version"))[:20]
            raise ConfigError(
                f"the server runs privfed {theirs}, this client {__version__}; "
                "install the same version"
            )
        return {
            "node": self.identity.name,
            "proof": self.identity.prove(challenge),
            "version": __version__,
        }

    def welcome(self, text: str) -> None:
        """Make the client from what the server sent.

        The client is made again only if the settings have changed, as data may take long to make.

        Args:
            text: see :meth:`Welcome.from_json`.

        Raises:
            ConfigError: if the settings are not accepted, or the users' rows do not fit them.
        """
        if text == self._settings:
            return
        welcome = Welcome.from_json(text)
        known = set(targets_in_files(self.folders))
        for target in targets(vars(welcome)):
            if target not in known:
                raise ConfigError(
                    f"the server asks for {target}, "
                    "which no configuration file of this machine names"
                )
        if self.rows is not None and welcome.simulated:
            raise ConfigError(
                f"the server takes {self.identity.name} for a simulated user: its noise may be "
                "known to everybody, and would not protect your data; nothing was sent. It has to "
                "register you as a real user (privfed roster)"
            )
        factory, users, names = ClientFactory.from_welcome(welcome), welcome.users, {}
        if self.rows is None:
            client: ServingClient = factory(users)
        else:
            registered = None if welcome.published else len(users)
            rows = self.rows.read(self.identity.name, registered, welcome)
            names = {users.start + i: name for i, name in enumerate(rows)}
            client = factory.serving(self._own_cohort(list(rows.values()), users.start))
            if not client.takes_rows:
                raise ConfigError(
                    f"{self.rows.path}: the federation learns from pictures, "
                    "and rows of a table are none; nothing was sent"
                )
        if self.state is not None:
            client.store = HeadStore(self.state, names)
            if client.memory is not None:
                client.memory.keep_in(self.state, "rounds")
        self.made, self._settings, self._error = client, text, welcome.error
        self._say_what_was_joined(welcome, len(names))

    def _say_what_was_joined(self, welcome: Welcome, own: int) -> None:
        """Tell the operator which federation was joined and with how many users and rows.

        Args:
            welcome: what the server sent.
            own: number of real users.
        """
        did = "got the model published by" if welcome.published else "joined"
        who = (
            f"{len(welcome.users):,} simulated user(s)" if self.rows is None else f"{own:,} user(s)"
        )
        cohort = self.client.cohort
        rows = f" and {cohort.shape[1]} rows each" if isinstance(cohort, Cohort) else ""
        self.say(f"{self.identity.name}: {did} {welcome.about}, with {who}{rows}")

    def _own_cohort(self, users: list[tuple[Array, Array]], first: int) -> Cohort:
        """Return the training rows of the users; rows that judge are set aside."""
        assert self.rows is not None
        X, y = (np.stack(part) for part in zip(*users, strict=True))
        kept = X.shape[1] - int(self.rows.test * X.shape[1])
        self.held_out = (X[:, kept:], y[:, kept:]) if kept < X.shape[1] else None
        return Cohort(first + np.arange(len(X)), X[:, :kept], y[:, :kept])

    def fit(self, ins: FitIns) -> FitRes:
        """Return the contribution of the node's users to one round."""
        return self.client.to_client().fit(ins)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model and keep the users' heads.

        How good a head is, is told to the operator of the node and to nobody else.
        """
        judged = self.client.to_client().evaluate(ins)
        if self.rows is not None:
            if self.held_out is not None:
                self._judge(parameters_to_ndarrays(ins.parameters), *self.held_out)
            if self.state is not None:
                self.say(f"{self.identity.name}: the model of your own is kept in {self.state}")
        return judged

    def _judge(self, shared: NDArrays, X: Array, y: Array) -> None:
        """Tell the error on held-out rows X (users, t, d), y (users, t)."""
        W = np.concatenate(
            [self.client.weights(block, shared) for block in self.client.cohort.blocks()]
        )
        predicted = np.matmul(X, W[:, :, None])[..., 0]
        labels = self._error == "risk"
        error = np.mean(predicted * y <= 0 if labels else (predicted - y) ** 2)
        words = "share of wrong labels" if labels else "mean squared error"
        self.say(f"{self.identity.name}: {words} on {y.size} held-out row(s): {error:.4g}")


def targets(settings: Any) -> Iterator[str]:
    """Yield every `_target_` in nested settings.

    Raises:
        ConfigError: for any other instruction to Hydra, such as `_args_` or an interpolation.
    """
    if isinstance(settings, dict):
        for key, value in settings.items():
            if key == "_target_":
                yield str(value)
            elif key.startswith("_"):
                raise ConfigError(
                    f"the server sent the setting {key!r}, which a client does not take"
                )
            else:
                yield from targets(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from targets(value)
    elif isinstance(settings, str) and "${" in settings:
        raise ConfigError(f"the server sent {settings[:40]!r}, which a client does not take")


def targets_in_files(folders: tuple[Path, ...]) -> Iterator[str]:
    """Yield every `_target_` that the configuration files in some folders name."""
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            yield from _named(OmegaConf.to_container(OmegaConf.load(path)))


def _named(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _named(value)
