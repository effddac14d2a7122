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
from flwr.common import Code, EvaluateIns, EvaluateRes, GetPropertiesRes, Scalar, Status, parameters_to_ndarrays, serde
from flwr.proto.transport_pb2 import ClientMessage, Reason, ServerMessage
from omegaconf import OmegaConf

from privfed import __version__
from privfed.config import CONF
from privfed.data.cohort import Cohort
from privfed.data.rows import read_rows
from privfed.errors import ConfigError, PrivfedError
from privfed.heads import HeadStore
from privfed.linalg import Array
from privfed.nodes import NodeFactory
from privfed.runtimes.door import prove

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

    def read(self, name: str, settings: Mapping[str, Any]) -> tuple[Array, Array]:
        """X (m, d) and y (m,), checked against what the server expects."""
        X, y = read_rows(self.path, self.target, settings["columns"], name)
        if X.shape[1] != settings["d"]:
            raise ConfigError(f"{self.path}: has {X.shape[1]} feature columns, the federation has {settings['d']}")
        return X, y


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
        self.identity, self.rows, self.state, self.folders, self.say = identity, rows, state, folders, say
        self.client: Any = None
        self.held_out: tuple[Array, Array] | None = None
        self.finished, self.questions = False, 0
        self._settings, self._error = "", "mse"

    def answer(self, message: ServerMessage) -> ClientMessage:
        """The reply to one message."""
        self.questions += 1
        kind = message.WhichOneof("msg")
        if kind == "get_properties_ins":
            properties = self.properties(serde.get_properties_ins_from_proto(message.get_properties_ins).config)
            return ClientMessage(get_properties_res=serde.get_properties_res_to_proto(GetPropertiesRes(OK, properties)))
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
            raise ConfigError(f"the server runs privfed {theirs}, this client {__version__}; install the same version")
        return {"node": name, "proof": prove(self.identity.token, name, challenge), "version": __version__}

    def welcome(self, text: str) -> None:
        """Make the client; again only when the settings have changed, as data may have taken long to make."""
        if text == self._settings:
            return
        settings = json.loads(text)
        known = set(targets_in_files(self.folders))
        for target in targets(settings):
            if target not in known:
                raise ConfigError(f"the server asks for {target}, which no configuration file of this machine names")
        factory = NodeFactory(settings["client"], settings["init"], settings["data"], settings["seed"])
        first, last = settings["users"]
        if self.rows is None:
            self.client = factory(range(first, last))
            names = {}
        else:
            self.client, names = factory.serving(self._own_cohort(settings, first)), {first: self.identity.name}
        if self.state is not None:
            self.client.store = HeadStore(self.state, names)
        self._settings, self._error = text, settings["error"]
        who = f"{last - first:,} simulated users" if self.rows is None else f"{len(self.client.cohort.X[0])} rows"
        self.say(f"{self.identity.name}: joined {settings['about']}; takes part with {who}")

    def _own_cohort(self, settings: Mapping[str, Any], number: int) -> Cohort:
        assert self.rows is not None
        X, y = self.rows.read(self.identity.name, settings)
        kept = len(X) - int(self.rows.test * len(X))
        self.held_out = (X[kept:], y[kept:]) if kept < len(X) else None
        return Cohort(np.array([number]), X[None, :kept], y[None, :kept])

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model, keep the own head, and say how good it is, to the user and nobody else."""
        judged: EvaluateRes = self.client.to_client().evaluate(ins)
        if self.rows is not None:
            w = self.client.weights(next(self.client.cohort.blocks()), parameters_to_ndarrays(ins.parameters))[0]
            if self.held_out is not None:
                X, y = self.held_out
                labels = self._error == "risk"
                error = np.mean(X @ w * y <= 0 if labels else (X @ w - y) ** 2)
                words = "share of wrong labels" if labels else "mean squared error"
                self.say(f"{self.identity.name}: {words} of your own model on {len(y)} held-out rows: {error:.4g}")
            if self.state is not None:
                self.say(f"{self.identity.name}: your own model is kept in {self.client.store.path(self.client.cohort.ids[0])}")
        return judged


def targets(settings: Any) -> Iterator[str]:
    """Every `_target_` in nested settings; any other instruction to the maker of objects is refused."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            if key == "_target_":
                yield str(value)
            elif key.startswith("_") or (isinstance(value, str) and "${" in value):
                raise ConfigError(f"the server sent the setting {key!r}, which a client does not take")
            else:
                yield from targets(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from targets(value)


def targets_in_files(folders: tuple[Path, ...]) -> Iterator[str]:
    """Every `_target_` that this machine's configuration files name."""
    for folder in folders:
        for path in folder.glob("*/*.yaml"):
            yield from _named(OmegaConf.to_container(OmegaConf.load(path)))


def _named(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _named(value)
