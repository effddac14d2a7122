"""Settings that the server sends to a node that has proven its identity."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from privfed.config.instantiation import Settings
from privfed.foundation.errors import ConfigError


@dataclass(frozen=True)
class Welcome:
    """What a node in another process makes its client from.

    Attributes:
        client: settings of the client, with its `_target_`.
        init: settings of the initialiser's client side, if there is one.
        data: settings of the data source, with its `_target_`.
        seed: seed of the run.
        rounds: rounds of the run, which tell how much the node has to compute.
        candidates: candidates per round, where users score some.
        users: public numbers of the users behind the node.
        d: number of features.
        columns: names of the features in order, if the server prescribes them.
        error: what is minimised: mse, risk or frobenius.
        about: description of the federation, for people.
        published: whether the node only receives a finished model.
        simulated: whether the users of the node are registered as simulated.
        plan: what will be asked, as values of JSON (see :class:`privfed.federation.plan.Plan`);
            None if nothing will be.
        run: number that the server drew for the run; a resumed run keeps it.
        secure: whether sums leave masked, and how simulated nodes find their keys; see
            :class:`privfed.federation.client_factory.ClientFactory`.
        terms: the frame of secure aggregation, as JSON; empty without it.
    """

    client: Settings
    init: Settings | None
    data: Settings
    seed: int
    rounds: int
    candidates: int
    users: range
    d: int
    columns: list[str] | None
    error: str
    about: str = "the federation"
    published: bool = False
    simulated: bool = False
    plan: dict[str, Any] | None = None
    run: str = ""
    secure: str = ""
    terms: str = ""

    def to_json(self) -> str:
        """Return the text that travels to the node."""
        return json.dumps(vars(self) | {"users": [self.users.start, self.users.stop]})

    @classmethod
    def from_json(cls, text: str) -> Welcome:
        """Read what the server sent.

        Args:
            text: JSON object with exactly the fields of this class.

        Raises:
            ConfigError: if the text is no JSON object, a field is missing, unknown or of another
                type.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError("the server's settings cannot be read: they are no JSON") from error
        if not isinstance(found, dict):
            raise ConfigError("the server's settings cannot be read: they are no JSON object")
        names = [field.name for field in fields(cls)]
        for name in names:
            if name not in found:
                raise ConfigError(f"the server's settings lack {name!r}")
            if not _fits(name, found[name]):
                value = repr(found[name])[:40]
                raise ConfigError(f"the server's setting {name!r} cannot be {value}")
        if unknown := sorted(set(found) - set(names)):
            raise ConfigError(f"the server sent {unknown[0][:40]!r}, which a client does not take")
        return cls(**found | {"users": range(*found["users"])})


KINDS: dict[str, type | tuple[type, ...]] = {
    "client": dict,
    "init": (dict, type(None)),
    "data": dict,
    "seed": int,
    "rounds": int,
    "candidates": int,
    "users": list,
    "d": int,
    "columns": (list, type(None)),
    "error": str,
    "about": str,
    "published": bool,
    "simulated": bool,
    "plan": (dict, type(None)),
    "run": str,
    "secure": str,
    "terms": str,
}


def _fits(name: str, value: Any) -> bool:
    """Whether a value of JSON has the type of a field."""
    if not isinstance(value, KINDS[name]) or (KINDS[name] is int and isinstance(value, bool)):
        return False
    items: list[Any] = value if isinstance(value, list) else []
    if name == "users":
        return len(items) == 2 and all(type(end) is int and end >= 0 for end in items)
    return name != "columns" or all(isinstance(each, str) for each in items)
