"""What an algorithm is written with: phases, a strategy for the server, a client for the users.

An algorithm overrides some of these twelve names, and no others:

    PrivateStrategy   publishes, start, phases, relations, guarantee, notes, memory, recall,
                      diagnostics
    CohortClient      methods marked with @task, weights, rivals

Families of algorithms (networks, tables, public features) have base classes of their own in this
room, which also say how users are computed together and judged.
"""

from privfed.algorithm.client import CohortClient, task
from privfed.algorithm.phases import Everybody, Groups, Phase, Poisson, Selection, Sum
from privfed.algorithm.strategy import PrivateStrategy

__all__ = [
    "CohortClient",
    "Everybody",
    "Groups",
    "Phase",
    "Poisson",
    "PrivateStrategy",
    "Selection",
    "Sum",
    "task",
]
