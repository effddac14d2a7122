"""Neighbouring relations: which two data sets an attacker must not be able to tell apart."""

from __future__ import annotations

REPLACE_ONE = "replace-one"
"""The whole data of one user are replaced by any other data."""
ADD_REMOVE = "add-remove"
"""One user with all its data is added or removed; the number of users is public."""
WEAK = "weak"
"""The targets of one user are replaced by any others; its features are public."""
RELATIONS = (REPLACE_ONE, ADD_REMOVE, WEAK)


def influence(relation: str) -> float:
    """Return how far one user can move a sum of vectors of norm at most 1.

    Replacing a user moves the sum from one end of the unit ball to the other, a distance of 2.
    Adding or removing a user moves it by at most 1.
    """
    return 1.0 if relation == ADD_REMOVE else 2.0
