"""A client's side of a federation over gRPC: proves who it is, makes its client from the server's settings, answers rounds.

The server's settings say which client to make by `_target_`. Only what this machine's own configuration files name is ever
made: a server can choose among installed algorithms, not run code of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    GetPropertiesRes,
    NDArrays,
    Scalar,
    Status,
    parameters_to_ndarrays,
    serde,
)
from flwr.proto.transport_pb2 import ClientMessage, Reason, ServerMessage
from omegaconf import OmegaConf

from privfed import __version__
from privfed.config.composition import CONF
from privfed.data.cohort import Cohort
from privfed.data.tables.own_rows import has_users, read_rows
from privfed.federation.client_factory import NodeFactory
from privfed.federation.head_store import HeadStore
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.linalg import Array
from privfed.runtimes.admission import prove

OK = Status(Code.OK, "")


@dataclass(frozen=True)
class Identity:
    """Who a client is, and the secret it proves it with."""

    name: str
    token: str


@dataclass(frozen=True)
class OwnRows:
    """A user's own file. test: the fraction of its rows, the last ones, that only judge the final model."""

    path: Path
    target: str
    test: float

    def read(
        self, name: str, users: int | None, settings: Mapping[str, Any]
    ) -> dict[str, tuple[Array, Array]]:
        """X (m, d) and y (m,) of each user, checked against what the server expects. name: the node's, and its only user's."""
        alone = users == 1 or (users is None and not has_users(self.path))
        rows = read_rows(self.path, self.target, settings["columns"], name if alone else None)
        for user, (X, _) in rows.items():
            if X.shape[1] != settings["d"]:
                raise ConfigError(
                    f"{self.path}: has {X.shape[1]} feature columns, the federation has {settings['d']}"
                )
            if len(X) != len(next(iter(rows.values()))[0]):
                raise ConfigError(
                    f"{self.path}: user {user!r} has {len(X)} rows, others have not; give all the same number"
                )
        if users is not None and len(rows) != users:
            raise ConfigError(
                f"{self.path}: has rows of {len(rows)} user(s), but {users} are registered for {name}"
            )
        return rows


class TurnedAwayError(PrivfedError):
    """The server does not want this client. later: trying again may help."""

    exit_code = 2

    def __init__(self, reason: str, later: bool) -> None:
        super().__init__(f"the server turned this client away: {reason}")
        self.later = later


class Participant:
    """Answers the server's messages. rows: the user's own data; None: the users are simulated, as the server says."""

    def __init__(
        self,
        identity: Identity,
        rows: OwnRows | None,
        state: Path | None = None,
        folders: tuple[Path, ...] = (CONF,),
        say: Callable[[str], None] = print,
    ) -> None:
        self.identity, self.rows, self.state, self.folders, self.say = (
            identity,
            rows,
            state,
            folders,
            say,
        )
        self.client: Any = None
        self.held_out: tuple[Array, Array] | None = None
        self.finished, self.questions = False, 0
        self._settings, self._error = "", "mse"

    def answer(self, message: ServerMessage) -> ClientMessage:
        """The reply to one message."""
        self.questions += 1
        kind = message.WhichOneof("msg")
        if kind == "get_properties_ins":
            properties = self.properties(
                serde.get_properties_ins_from_proto(message.get_properties_ins).config
            )
            return ClientMessage(
                get_properties_res=serde.get_properties_res_to_proto(
                    GetPropertiesRes(OK, properties)
                )
            )
        if kind == "fit_ins" and self.client is not None:
            fitted = self.client.to_client().fit(serde.fit_ins_from_proto(message.fit_ins))
            return ClientMessage(fit_res=serde.fit_res_to_proto(fitted))
        if kind == "evaluate_ins" and self.client is not None:
            judged = self.evaluate(serde.evaluate_ins_from_proto(message.evaluate_ins))
            return ClientMessage(evaluate_res=serde.evaluate_res_to_proto(judged))
        if kind == "reconnect_ins":
            self.finished = True
            return ClientMessage(disconnect_res=ClientMessage.DisconnectRes(reason=Reason.ACK))
        raise PrivfedError(f"the server sent {kind!r}, which is not part of the protocol")

    def properties(self, question: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Hello, welcome or goodbye."""
        if "refused" in question:
            raise TurnedAwayError(str(question["refused"]), bool(question.get("later")))
        if "welcome" in question:
            self.welcome(str(question["welcome"]))
            return {"ready": True}
        name, challenge = self.identity.name, question.get("hello")
        if not isinstance(challenge, bytes) or question.get("version") != __version__:
            theirs = str(question.get("version"))[:20]
            raise ConfigError(
                f"the server runs privfed {theirs}, this client {__version__}; install the same version"
            )
        return {
            "node": name,
            "proof": prove(self.identity.token, name, challenge),
            "version": __version__,
        }

    def welcome(self, text: str) -> None:
        """Make the client; again only when the settings have changed, as data may have taken long to make."""
        if text == self._settings:
            return
        settings = json.loads(text)
        known = set(targets_in_files(self.folders))
        for target in targets(settings):
            if target not in known:
                raise ConfigError(
                    f"the server asks for {target}, which no configuration file of this machine names"
                )
        if self.rows is not None and settings["simulated"]:
            raise ConfigError(
                f"the server takes {self.identity.name} for a simulated user: its noise may be known to everybody, and would "
                "not protect your data; nothing was sent. It has to register you as a real user (privfed roster)"
            )
        factory = NodeFactory(
            settings["client"], settings["init"], settings["data"], settings["seed"]
        )
        first, last = settings["users"]
        names: dict[int, str] = {}
        if self.rows is None:
            self.client = factory(range(first, last))
        else:
            registered = None if settings["published"] else last - first
            users = self.rows.read(self.identity.name, registered, settings)
            names = {first + i: name for i, name in enumerate(users)}
            self.client = factory.serving(self._own_cohort(list(users.values()), first))
        if self.rows is not None and not self.client.takes_rows:
            raise ConfigError(
                f"{self.rows.path}: the federation learns from pictures, and rows of a table are none; nothing was sent"
            )
        if self.state is not None:
            self.client.store = HeadStore(self.state, names)
            if self.client.memory is not None:
                self.client.memory.keep_in(self.state, "rounds")
        self._settings, self._error = text, settings["error"]
        who = (
            f"{last - first:,} simulated user(s)"
            if self.rows is None
            else f"{len(names):,} user(s)"
        )
        did = (
            f"got the model published by {settings['about']}"
            if settings["published"]
            else f"joined {settings['about']}"
        )
        rows = (
            f" and {self.client.cohort.shape[1]} rows each"
            if hasattr(self.client.cohort, "shape")
            else ""
        )
        self.say(f"{self.identity.name}: {did}, with {who}{rows}")

    def _own_cohort(self, users: list[tuple[Array, Array]], first: int) -> Cohort:
        """The users' training rows; what is held out stays here."""
        assert self.rows is not None
        X, y = (np.stack(part) for part in zip(*users, strict=True))
        kept = X.shape[1] - int(self.rows.test * X.shape[1])
        self.held_out = (X[:, kept:], y[:, kept:]) if kept < X.shape[1] else None
        return Cohort(first + np.arange(len(X)), X[:, :kept], y[:, :kept])

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model, keep the own head, and say how good it is, to the user and nobody else."""
        judged: EvaluateRes = self.client.to_client().evaluate(ins)
        if self.rows is not None:
            if self.held_out is not None:
                self._judge(parameters_to_ndarrays(ins.parameters), *self.held_out)
            if self.state is not None:
                self.say(f"{self.identity.name}: the model of your own is kept in {self.state}")
        return judged

    def _judge(self, shared: NDArrays, X: Array, y: Array) -> None:
        """Errors on held-out rows X (users, t, d), y (users, t)."""
        W = np.concatenate(
            [self.client.weights(block, shared) for block in self.client.cohort.blocks()]
        )
        predicted = np.matmul(X, W[:, :, None])[..., 0]
        labels = self._error == "risk"
        error = np.mean(predicted * y <= 0 if labels else (predicted - y) ** 2)
        words = "share of wrong labels" if labels else "mean squared error"
        self.say(f"{self.identity.name}: {words} on {y.size} held-out row(s): {error:.4g}")


def targets(settings: Any) -> Iterator[str]:
    """Every `_target_` in nested settings; any other instruction to the maker of objects is refused."""
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
    """Every `_target_` that this machine's configuration files name."""
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            yield from _named(OmegaConf.to_container(OmegaConf.load(path)))


def _named(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _named(value)
