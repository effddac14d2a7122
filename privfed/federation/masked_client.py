"""A node's client under secure aggregation: what it sends is masked, whatever it computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from flwr.client import Client
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Status,
    parameters_to_ndarrays,
)

from privfed.federation.roster import Member
from privfed.secure.keys import NodeKey
from privfed.secure.node import SecureNode, refused

OK = Status(Code.OK, "")
STAGE, PRESENT, SUMS = "secure", "present", "sums"
"""Settings of a message that belong to secure aggregation, not to the algorithm."""
NOTHING = Parameters([], "")


def masked_fit(node: SecureNode, ins: FitIns, compute: Callable[[FitIns], FitRes]) -> FitRes:
    """Answer a message of the server: of the protocol, or a step, whose sums leave masked.

    Args:
        node: this node's side of secure aggregation.
        ins: message of the server.
        compute: computes the sums over the node's users.

    Raises:
        ConfigError: the message is refused, among others because it asks for sums without masks.
    """
    if STAGE in ins.config:
        return FitRes(OK, NOTHING, 1, dict(node.answer(ins.config)))
    if PRESENT not in ins.config:
        raise refused("the server asks for sums without masks")
    plain = {key: value for key, value in ins.config.items() if key not in (PRESENT, SUMS)}
    asked = FitIns(ins.parameters, plain)
    answer = compute(asked)
    arrays = parameters_to_ndarrays(answer.parameters)
    words, more = node.masked(ins.config, arrays, request_of(asked))
    told = {**answer.metrics, **more}
    return FitRes(OK, Parameters([words.tobytes()], "masked"), answer.num_examples, told)


def request_of(ins: FitIns) -> bytes:
    """Return a digest of everything in a question that sums depend on."""
    told = json.dumps(ins.config, sort_keys=True, default=bytes.hex)
    found = hashlib.sha256(told.encode())
    for tensor in ins.parameters.tensors:
        found.update(len(tensor).to_bytes(8, "little") + tensor)
    return found.digest()


class MaskedClient(Client):
    """Flower client of a node of simulated users, whose sums leave masked.

    Args:
        client: computes the sums.
        node: masks them.
    """

    def __init__(self, client: Client, node: SecureNode) -> None:
        self.client, self.node = client, node

    def fit(self, ins: FitIns) -> FitRes:
        """See :func:`masked_fit`."""
        return masked_fit(self.node, ins, self.client.fit)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Hand over the published model."""
        return self.client.evaluate(ins)


def simulated_key(name: str, token: str, seed: int, repeatable: bool) -> NodeKey:
    """Return the key of a node of simulated users, which the server knows as well.

    Args:
        name: name of the node.
        token: its token.
        seed: seed of the run.
        repeatable: whether the same seed gives the same noise.
    """
    return NodeKey.simulated("seed", seed, name) if repeatable else NodeKey.simulated(token, name)


def public_key(member: Member, seed: int, repeatable: bool) -> str:
    """Return the public key of a registered node, hexadecimal; empty if it has none."""
    if member.simulated:
        return simulated_key(member.name, member.token, seed, repeatable).public.hex()
    return member.key
