"""x."""

from __future__ import annotations

from privfed.federation import Federation
from privfed.linalg import Array, top_singular
from strategies.initialiser import Initialiser


class Regression(Initialiser):
    task = "regression"
    gives = ("U", "S", "V")

    def __init__(self, clip: float | str, d1: int, d2: int, boost: float=1.0) -> None:
        self.clip, self.d1, self.d2, self.boost = clip, d1, d2, boost

    def shape(self, federation: Federation) -> tuple[int, ...]:
        return (self.d1 * self.d2,)

    def step(self, federation: Federation, t: int, shared: list[Array], mean: Array) -> list[Array]:
        U, S, V = top_singular(mean.reshape(self.d1, self.d2), federation.k)
        return [U, S * self.boost, V]
