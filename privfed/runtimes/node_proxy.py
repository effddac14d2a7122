"""Proxy of a simulated node for Flower's server loop."""

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
    """Sends every question of the server loop to a node through one method, `ask`."""

    @abstractmethod
    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """Return the answer of the node's client.

        Args:
            question: name of the client's method.
            ins: Flower's instruction, the argument of the method.
            timeout: seconds to wait for the answer; any time if None.
        """

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Ask for the sums over the node's users."""
        return self.ask("fit", ins, timeout)

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Send the published model and ask for errors."""
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
        """Do nothing: there is no connection to close."""
        return DisconnectRes(reason="")
