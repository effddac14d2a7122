"""How Flower's server loop asks a node, by one method."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
)
from flwr.server.client_proxy import ClientProxy


class NodeProxy(ClientProxy):
    """A node of a simulation: every question goes the same way."""

    @abstractmethod
    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """The answer of the node's client; question is the name of the client's method."""

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Ask for the cohort's sums."""
        return self.ask("fit", ins, timeout)

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Send the published model, ask for errors."""
        return self.ask("evaluate", ins, timeout)

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Part of Flower's interface."""
        return self.ask("get_properties", ins, timeout)

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        """Part of Flower's interface."""
        return self.ask("get_parameters", ins, timeout)

    def reconnect(
        self, ins: ReconnectIns, timeout: float | None, group_id: int | None
    ) -> DisconnectRes:
        """There is no connection to close."""
        return DisconnectRes(reason="")
