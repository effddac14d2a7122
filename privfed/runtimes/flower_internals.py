"""Everything that privfed uses of Flower's inner modules.

Flower keeps its public API stable, but moves inner modules between versions. An adaptation to
another version of Flower is made here and nowhere else.
"""

from flwr.common.serde import (
    evaluate_ins_from_proto,
    evaluate_res_to_proto,
    fit_ins_from_proto,
    fit_res_to_proto,
    get_properties_ins_from_proto,
    get_properties_res_to_proto,
)
from flwr.proto.transport_pb2 import ClientMessage, Reason, ServerMessage
from flwr.proto.transport_pb2_grpc import (
    FlowerServiceServicer as ServicerInterface,
)
from flwr.proto.transport_pb2_grpc import (
    FlowerServiceStub,
    add_FlowerServiceServicer_to_server,
)
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.superlink.fleet.grpc_bidi.flower_service_servicer import FlowerServiceServicer
from flwr.server.superlink.fleet.grpc_bidi.grpc_bridge import (
    GrpcBridge,
    GrpcBridgeClosed,
    InsWrapper,
    ResWrapper,
)
from flwr.server.superlink.fleet.grpc_bidi.grpc_client_proxy import GrpcClientProxy

__all__ = [
    "ClientMessage",
    "FlowerServiceServicer",
    "FlowerServiceStub",
    "GridClientProxy",
    "GrpcBridge",
    "GrpcBridgeClosed",
    "GrpcClientProxy",
    "InsWrapper",
    "Reason",
    "ResWrapper",
    "ServerMessage",
    "ServicerInterface",
    "add_FlowerServiceServicer_to_server",
    "evaluate_ins_from_proto",
    "evaluate_res_to_proto",
    "fit_ins_from_proto",
    "fit_res_to_proto",
    "get_properties_ins_from_proto",
    "get_properties_res_to_proto",
]
