"""Settings of the data of registered users, which follow from the roster."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Roster
from privfed.foundation.errors import ConfigError

REMOTE_TABLE = "privfed.data.remote_table.RemoteTable"
KEPT = ("kind", "schema", "path", "most_rows", "k")
"""Settings of data=table that registered users share."""


def with_registered_users(cfg: DictConfig, roster: Roster | None) -> None:
    """Fill in what the roster says about the data; a table becomes one of registered users.

    Args:
        cfg: configuration of a run; it is changed.
        roster: registered users; None: nobody is registered, and nothing changes.
    """
    if roster is None:
        return
    if cfg.data.get("kind") == "table":
        places = [
            [roster.nodes[member.name].start, roster.nodes[member.name].stop]
            for member in roster
            if member.simulated
        ]
        table = {key: cfg.data[key] for key in KEPT}
        new = {"_target_": REMOTE_TABLE, "n": roster.users, "declared": None, "places": places}
        OmegaConf.set_struct(cfg, False)
        cfg.data = OmegaConf.create(table | new)
        OmegaConf.set_struct(cfg, True)
    elif cfg.data.get("n", 0) is None:
        cfg.data.n = roster.users


def check_takes_real_users(experiment: Experiment) -> None:
    """Refuse before anybody joins what real users cannot take part in.

    Raises:
        ConfigError: if real users are registered, and the algorithm learns from pictures; or if the
            file of the simulated users cannot be used.
    """
    if experiment.roster.simulated:
        return
    name = experiment.cfg.algo.name
    if not experiment.takes_rows:
        raise ConfigError.of(
            "algo",
            name,
            "learns from pictures, and clients bring rows of tables; real users are registered. "
            "Register simulated ones (privfed roster --simulated), or choose another algorithm",
        )
    users = next((experiment.nodes[m.name] for m in experiment.roster if m.simulated), None)
    if users is not None and experiment.data.schema is not None:
        experiment.data.cohort(users.start, users.stop)
