"""A node's side of a federation: prove who it is, make its client, answer the server's questions.

The settings that the server sends name the client by its `_target_`. Only targets that the
configuration files of this machine name are ever made: a server can choose among the installed
algorithms, but it cannot run code of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
from privfed.data.tables.client_rows import columns_digest, has_users, read_own_rows
from privfed.data.tables.own_table import OwnTable, read_own_table
from privfed.federation.client_factory import SEEDED, ClientFactory, ServingClient
from privfed.federation.client_ledger import ClientLedger
from privfed.federation.head_store import HeadStore
from privfed.federation.identity import PROTOCOL, Identity, compatible
from privfed.federation.limits import Limits, StepGuard, clips_in
from privfed.federation.masked_client import SUMS, masked_fit, simulated_key
from privfed.federation.node_clients import NodeClients, Rows, Served, clients_for
from privfed.federation.node_settings import Welcome
from privfed.federation.noise_promise import check_noise
from privfed.federation.plan import Plan
from privfed.federation.table_node import TableNode
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.state_folder import state_folder
from privfed.secure.journal import Journal
from privfed.secure.keys import NodeKey
from privfed.secure.node import SecureNode
from privfed.secure.terms import Terms, sums_from_json

RUN = re.compile("[0-9a-f]{32}")
"""Number of a run, as a server draws it."""


@dataclass(frozen=True)
class OwnRows:
    """File with the rows of real users.

    Attributes:
        path: CSV file with a header.
        target: column to predict.
        test: fraction of each user's rows, chosen at random, that only judges the final model.
    """

    path: Path
    target: str
    test: float

    def read(
        self, name: str, users: int | None, welcome: Welcome, say: Callable[[str], None]
    ) -> dict[str, Rows]:
        """Read the rows and check them against what the server expects.

        Users who have no rows keep nobody away. More users than are registered are refused, here
        and before anything is sent: nobody but the operator can say who is meant.

        Args:
            name: name of the node, and of its user if it has only one.
            users: number of registered users; any number unless given.
            welcome: what the server sent.
            say: prints a line for the operator of the node.

        Returns:
            X (m, d) and y (m,) per user, by name.

        Raises:
            ConfigError: if the file cannot be read or does not fit.
        """
        alone = users == 1 or (users is None and not has_users(self.path))
        rows = read_own_rows(self.path, self.target, welcome.columns, name if alone else None, say)
        width = next(iter(rows.values()))[0].shape[1]
        if width != welcome.d:
            raise ConfigError(
                f"{self.path}: has {width} feature columns, the federation has {welcome.d}"
            )
        if users is not None and len(rows) > users:
            raise ConfigError(
                f"{self.path}: has rows of {len(rows)} user(s), "
                f"but {users} are registered for {name}"
            )
        if users is not None and len(rows) < users:
            missing = f"{users - len(rows)} of {users} registered user(s)"
            say(f"{self.path}: {missing} have no rows and contribute nothing")
        return rows


@dataclass(frozen=True)
class Vow:
    """What a node holds on to where nobody is trusted.

    Attributes:
        key: secret of the node, whose public key is in the roster.
        roster: digest of the roster, as the node was told by somebody other than the server.
    """

    key: NodeKey
    roster: bytes


class TurnedAwayError(PrivfedError):
    """The server refuses this client.

    Attributes:
        later: whether trying again may help.
    """

    exit_code = 2

    def __init__(self, reason: str, later: bool) -> None:
        super().__init__(f"the server turned this client away: {reason}")
        self.later = later


class PlanShownError(PrivfedError):
    """The plan was shown, which is all that was asked for: the conversation ends."""


class Participant:
    """Answers the server's questions for the users of one node.

    Args:
        identity: name and token of the node.
        rows: file of the real users; None if the users are simulated as the server says.
        state: folder where heads and memories of the users are kept, if any, and the node's own
            ledger; without it the ledger is in the state folder of the person at this machine.
        folders: folders of configuration files that name the targets which may be made.
        say: prints a line for the operator of the node.
        limits: what the operator allows.
        only_plan: show the plan of the run and leave.
        one_run: refuse other runs of the server than the first, whose plan was shown; otherwise
            the limits alone decide.
        vow: key of the node and digest of the roster, for runs in which nobody is trusted; such a
            node sends no sums without masks.
    """

    def __init__(
        self,
        identity: Identity,
        rows: OwnRows | None,
        state: Path | None = None,
        folders: tuple[Path, ...] = (CONF,),
        say: Callable[[str], None] = print,
        limits: Limits | None = None,
        only_plan: bool = False,
        one_run: bool = True,
        vow: Vow | None = None,
    ) -> None:
        self.identity, self.rows, self.state = identity, rows, state
        self.folders, self.say = folders, say
        self.limits, self.only_plan, self.one_run = limits or Limits(), only_plan, one_run
        self.made: NodeClients | None = None
        """The clients that serve the users, once the server has sent its settings."""
        self.vow = vow
        self.secure: SecureNode | None = None
        """Masks what is sent, where nobody is trusted."""
        self.guard: StepGuard | None = None
        """Decides which steps are answered, where users are real and train."""
        self._settings, self._error = "", "mse"
        self._columns: str | None = None
        """Hash of the names of the features, where the server did not say which to read."""

    @property
    def clients(self) -> NodeClients:
        """The clients that serve the users.

        Raises:
            PrivfedError: if the server has not sent its settings yet.
        """
        if self.made is None:
            raise PrivfedError("the server asked before it sent its settings")
        return self.made

    @property
    def client(self) -> ServingClient:
        """One of the clients that serve the users; see `clients`."""
        return self.clients.first

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
            told: dict[str, Scalar] = {"ready": True}
            return told if self._columns is None else told | {"columns": self._columns}
        challenge = question.get("hello")
        same = question.get("protocol", PROTOCOL) == PROTOCOL
        if (
            not isinstance(challenge, bytes)
            or not same
            or not compatible(question.get("version"), __version__)
        ):
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
        known = known_targets(self.folders)
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
        guard = None if self.rows is None else self._guarded(self.rows, welcome)
        secure = self._secured(welcome)
        if self.only_plan:
            self._show_plan(welcome, guard)
            raise PlanShownError("the plan was shown")
        factory, names = ClientFactory.from_welcome(welcome), dict[int, str]()
        if self.rows is None:
            made = NodeClients([Served(factory(welcome.users))])
        else:
            made, names = self._with_own_rows(self.rows, welcome, factory)
        if self.state is not None:
            for client in (*(each.client for each in made.served), made.absent):
                if client is not None and client.memory is not None:
                    client.memory.keep_in(self.state, "rounds")
            made.keep_heads(HeadStore(self.state, names))
        self.made, self.guard, self.secure = made, guard, secure
        self._settings, self._error = text, welcome.error
        self._say_what_was_joined(welcome)
        if guard is not None and guard.ledger.last(guard.run) is None:
            self._show_plan(welcome, guard)

    def _guarded(self, rows: OwnRows, welcome: Welcome) -> StepGuard | None:
        """Return what decides which steps are answered; None if only the model is taken.

        Raises:
            ConfigError: if the server sent no plan, or one that is refused.
            BudgetError: if the run would cost more than the operator allows.
        """
        if welcome.published:
            return None
        if self.one_run and self.guard is not None and welcome.run != self.guard.run:
            raise ConfigError(
                "refused: the server began another run; start this client again to take part in it"
            )
        if welcome.plan is None or not RUN.fullmatch(welcome.run):
            raise ConfigError("refused: the server did not say what it will ask; nothing was sent")
        ledger = ClientLedger(self._ledger_folder(), rows.path)
        plan = Plan.from_dict(welcome.plan)
        guard = StepGuard(plan, welcome.run, welcome.seed, self.limits, ledger)
        try:
            guard.check_plan()
        except PrivfedError:
            if self.only_plan:
                self._show_plan(welcome, guard)
            raise
        return guard

    def _secured(self, welcome: Welcome) -> SecureNode | None:
        """Return what masks the sums of a run; None if its server is trusted with them.

        Raises:
            ConfigError: if it is not as this node was told.
        """
        if not welcome.secure:
            if self.vow is not None and not welcome.published:
                raise ConfigError(
                    "refused: this node was told a roster's hash, but the server asks for sums "
                    "without masks; nothing was sent"
                )
            return None

        def same_run(terms: Terms) -> None:
            if self.rows is not None and terms.run != welcome.run:
                raise ConfigError("refused: the server agrees keys for another run")

        if self.rows is None:
            name, token = self.identity.name, self.identity.token
            key = simulated_key(name, token, welcome.seed, welcome.secure == SEEDED)
            journal = Journal() if self.secure is None else self.secure.journal
            return SecureNode(key, journal)
        if self.vow is None:
            raise ConfigError(
                "refused: nobody is trusted in this run, so this node needs the hash of the "
                "roster from somebody other than the server (--roster-hash) and its own key "
                "(--key-file); nothing was sent"
            )
        path = self._ledger_folder() / f"{self.identity.name}.masks.json"
        node = SecureNode(self.vow.key, Journal.at(path), self.vow.roster, same_run)
        node.accepted(welcome.terms)
        return node

    def _ledger_folder(self) -> Path:
        """Return where this node's ledger is: in its own folder, or in that of the machine's user.

        Raises:
            ConfigError: if there is neither.
        """
        if self.state is not None:
            return self.state
        try:
            return state_folder() / "client"
        except OSError as error:
            raise ConfigError(
                f"this client's ledger has no place ({error.strerror}); give a folder with --state"
            ) from error

    def _with_own_rows(
        self, own: OwnRows, welcome: Welcome, factory: ClientFactory
    ) -> tuple[NodeClients, dict[int, str]]:
        """Return the clients of the real users, and their names by public number."""
        users = welcome.users
        registered = None if welcome.published else users
        count = None if registered is None else len(registered)
        schema = factory.source.schema
        if schema is not None:
            frame = read_own_table(own.path, schema, self.identity.name, count, self.say)
            most_rows = int(welcome.data["most_rows"])
            table = OwnTable(schema, frame, welcome.seed, own.test, most_rows)
            numbers = users if registered is not None else range(table.n)
            known = {numbers.start + i: name for i, name in enumerate(frame.names)}
            return TableNode(factory, table, numbers), known
        found = own.read(self.identity.name, count, welcome, self.say)
        if welcome.columns is None and not welcome.published:
            self._columns = columns_digest(own.path, own.target)
        names = {users.start + i: name for i, name in enumerate(found)}
        rows = {number: found[name] for number, name in names.items()}
        made = clients_for(factory, rows, names, registered, own.test, self.say)
        if not made.first.takes_rows:
            raise ConfigError(
                f"{own.path}: the federation learns from pictures, "
                "and rows of a table are none; nothing was sent"
            )
        return made, names

    def _show_plan(self, welcome: Welcome, guard: StepGuard | None) -> None:
        """Tell the operator what the server will ask, and what that costs by the own ledger."""
        if guard is not None:
            plan: Plan | None = guard.plan
        else:
            plan = None if welcome.plan is None else Plan.from_dict(welcome.plan)
        if plan is None:
            self.say(f"{self.identity.name}: nothing will be asked, the model is published")
            return
        for line in plan.lines():
            self.say(f"{self.identity.name}: {line}")
        if guard is not None:
            self.say(f"{self.identity.name}: {guard.account()}")

    def _say_what_was_joined(self, welcome: Welcome) -> None:
        """Tell the operator which federation was joined and with how many users and rows."""
        did = "got the model published by" if welcome.published else "joined"
        simulated = f"{len(welcome.users):,} simulated user(s)"
        who = simulated if self.rows is None else f"{self.clients.users:,} user(s)"
        counts = sorted(set(self.clients.row_counts)) if self.rows is not None else []
        rows = ""
        if counts:
            each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            rows = f" and {each} rows each"
        self.say(f"{self.identity.name}: {did} {welcome.about}, with {who}{rows}")

    def fit(self, ins: FitIns) -> FitRes:
        """Return the contribution of the node's users to one round.

        Raises:
            ConfigError: if the plan that was shown has no such step, or the limits forbid it.
            BudgetError: if it would cost more than the operator allows.
        """
        if self.secure is not None:
            self._check_noise(ins)
            return masked_fit(self.secure, ins, self._sums)
        return self._sums(ins)

    def _check_noise(self, ins: FitIns) -> None:
        """Refuse a step whose noise is not what the plan promised."""
        if self.guard is not None and SUMS in ins.config:
            number, told = int(ins.config.get("step", 0)), str(ins.config[SUMS])
            check_noise(self.guard.plan, number, clips_in(ins.config), sums_from_json(told))

    def _sums(self, ins: FitIns) -> FitRes:
        """Return the sums over the node's users, if they may be computed."""
        clients = self.clients
        if self.rows is None:
            return clients.fit(ins)
        if self.guard is None:
            raise ConfigError(
                "refused: the server asks for training, though its model is published; "
                "nothing was sent"
            )
        return self.guard.answer(ins, clients.fit)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model and keep the users' heads.

        How good a head is, is told to the operator of the node and to nobody else.
        """
        judged = self.clients.evaluate(ins)
        if self.rows is not None:
            self._judge(parameters_to_ndarrays(ins.parameters))
            if self.state is not None:
                self.say(f"{self.identity.name}: the model of your own is kept in {self.state}")
            if self.guard is not None:
                self.guard.ledger.forget_answer(self.guard.run)
        return judged

    def _judge(self, shared: NDArrays) -> None:
        """Tell the error on held-out rows."""
        labels = self._error == "risk"
        errors = self.clients.errors(shared, labels)
        if len(errors):
            words = "share of wrong labels" if labels else "mean squared error"
            told = f"{words} on {len(errors)} held-out row(s): {np.mean(errors):.4g}"
            self.say(f"{self.identity.name}: {told}")


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


@lru_cache(maxsize=4)
def known_targets(folders: tuple[Path, ...]) -> frozenset[str]:
    """Return every `_target_` that this machine's configuration files name; read once."""
    return frozenset(targets_in_files(folders))


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
