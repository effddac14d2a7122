"""Neighbouring relations: which two data sets an attacker must not be able to tell apart."""

from __future__ import annotations

REPLACE_ONE = "replace-one"
"""The whole data of one user are replaced by any other data."""
ZERO_OUT = "zero-out"
"""All data of one user are emptied; the number of users is public and stays as it is."""
WEAK = "weak"
"""The targets of one user are replaced by any others; its features are public."""
RELATIONS = (REPLACE_ONE, ZERO_OUT, WEAK)
ALIASES = {"add-remove": ZERO_OUT}
"""Other names of relations, which are read and never written."""


def canonical(relation: str) -> str:
    """Return the name under which a relation is known here."""
    return ALIASES.get(relation, relation)


def influence(relation: str) -> float:
    """Return how far one user can move a sum of vectors of norm at most 1.

    Replacing a user moves the sum from one end of the unit ball to the other, a distance of 2.
    Emptying the data of a user, whose part is then 0, moves it by at most 1.
    """
    return 1.0 if relation == ZERO_OUT else 2.0
