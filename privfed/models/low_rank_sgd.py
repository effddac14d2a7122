"""Short SGD on linear layers for many users at once, without forming any user's weights.

One step of SGD adds to the weights W of a linear layer a product of low rank, g_j = D_j^T A_j,
where A_j (m rows) are the layer's inputs and D_j the derivatives at its outputs. With momentum,
decay and a pull toward the start, every later point is still a combination of the start and the
gradients so far,

    theta_s = (1 + a_s) theta_0 + sum_j c_sj g_j,

with numbers a_s, c_sj that follow from the settings alone. So a layer computes A W_s^T = (1 + a_s)
A W_0^T + sum_j c_sj (A A_j^T) D_j. The first product is one for all users, and the others are m x
m. Only the update at the end is formed, since it has to be clipped by its own norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from privfed.models.network import Network, Parameters, is_linear, replace_layer
from privfed.models.sgd import SGD


class PersonalLinear(nn.Module):
    """Linear layer with the weights (1 + a) W + sum_j c_j D_j^T A_j per user."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.biased = layer.in_features, layer.bias is not None

    def begin(self, W: Tensor, b: Tensor | None, course: LowRank) -> None:
        """Start with new users.

        Args:
            W: shared weights, (out, in).
            b: shared bias, (out,).
            course: combination of these users.
        """
        self.W, self.b, self.course = W, b, course
        self.inputs: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self._known: tuple[Tensor, Tensor, Tensor | None] | None = None

    def forward(self, A: Tensor) -> Tensor:
        """Map A (B m, in) to (B m, out)."""
        course, B = self.course, self.course.users
        rows = A.reshape(B, -1, self.in_features)
        shared, gram = self._shared(A)
        shared = shared.view(B, -1, shared.shape[1])
        if self.inputs:
            scale, weights = course.combination()
            shared = shared * scale
            if gram is not None:
                D = _weighted(self.slopes, weights)
                shared = shared + torch.bmm(gram, D) + self._bias(D)
            else:
                for A_j, D_j, c_j in zip(self.inputs, self.slopes, weights, strict=True):
                    D = c_j * D_j
                    shared = (
                        shared + torch.bmm(torch.bmm(rows, A_j.transpose(1, 2)), D) + self._bias(D)
                    )
        out = (
            shared
            if shared.requires_grad or not torch.is_grad_enabled()
            else shared.detach().requires_grad_()
        )
        if torch.is_grad_enabled():
            self.last = (rows.detach(), out)
        flat = out.reshape(-1, out.shape[2])
        # A later layer may work in place.
        return flat.clone() if torch.is_grad_enabled() else flat

    def learn(self, slope: Tensor) -> None:
        """Record the derivatives (B, m, out) at the outputs of the last call."""
        self.inputs.append(self.last[0])
        self.slopes.append(slope)

    def update(self) -> Iterator[Tensor]:
        """Yield the change of W (B, out, in), and of b (B, out)."""
        grown, weights = self.course.growth(), self.course.combination()[1]
        if all(_same(A, self.inputs[0]) for A in self.inputs):
            A, D = self.inputs[0], _weighted(self.slopes, weights)
        else:
            A = torch.cat(self.inputs, 1)
            D = torch.cat([c_j * D_j for D_j, c_j in zip(self.slopes, weights, strict=True)], 1)
        yield torch.bmm(D.transpose(1, 2), A).add_(grown * self.W)
        if self.b is not None:
            yield D.sum(1) + grown[:, 0] * self.b

    def _bias(self, D: Tensor) -> Tensor | float:
        return D.sum(1, keepdim=True) if self.biased else 0.0

    def _shared(self, A: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return A W_0^T + b_0, and A A^T (B, m, m) if the same inputs come again.

        Images are the same inputs in every step on the same batch.
        """
        if A.requires_grad or not torch.is_grad_enabled():
            return nn.functional.linear(A, self.W, self.b), None
        if self._known is None or not _same(self._known[0], A):
            self._known = (A, nn.functional.linear(A, self.W, self.b), None)
            return self._known[1], None
        A, shared, gram = self._known
        rows = A.view(self.course.users, -1, self.in_features)
        if not all(_same(A_j, rows) for A_j in self.inputs):
            return shared, None
        if gram is None:
            gram = torch.bmm(rows, rows.transpose(1, 2))
            self._known = (A, shared, gram)
        return shared, gram


class LowRank:
    """Users' own parameters as combinations of the shared ones and of the steps' gradients."""

    LONGEST = 12
    """Number of steps above which one copy of the parameters per user is cheaper."""

    def __init__(
        self,
        parts: PersonalNetwork,
        body: Parameters,
        head: Parameters,
        users: int,
        steps: int,
        sgd: SGD,
    ) -> None:
        self.users, self.sgd = users, sgd
        self.module, self.head = parts.module, parts.head
        for name, layer in parts.layers.items():
            layer.begin(body[f"{name}.weight"], body.get(f"{name}.bias"), self)
        self.trained = list(parts.layers.values())
        if head:
            self.head.begin(head["weight"], head.get("bias"), self)
            self.trained.append(self.head)
        # Coordinates of theta - theta_0 and of the velocity: first that of the start, then one per
        # gradient.
        self.place = torch.zeros(users, steps + 1, dtype=torch.float64)
        self.velocity = torch.zeros_like(self.place)
        self.done = 0

    def features(self, x: Tensor) -> Tensor:
        """See :class:`Course`."""
        flat: Tensor = self.module(x)
        return flat.view(self.users, -1, flat.shape[1])

    def logits(self, features: Tensor) -> Tensor:
        """See :class:`Course`."""
        flat: Tensor = self.head(features.reshape(-1, features.shape[2]))
        return flat.view(self.users, -1, flat.shape[1])

    def combination(self) -> tuple[Tensor, list[Tensor]]:
        """Return 1 + a and the list of c_j, each of shape (B, 1, 1)."""
        columns = self.place.float().to(self.trained[0].W.device)[:, :, None, None]
        return 1.0 + columns[:, 0], [columns[:, j] for j in range(1, self.done + 1)]

    def growth(self) -> Tensor:
        """Return a (B, 1, 1); adding 1 would lose its digits, since a is far below 1."""
        return self.place[:, :1, None].float().to(self.trained[0].W.device)

    def step(self, loss: Tensor, active: Tensor) -> None:
        """See :class:`Course`."""
        for layer, slope in zip(
            self.trained,
            torch.autograd.grad(loss, [layer.last[1] for layer in self.trained]),
            strict=True,
        ):
            layer.learn(slope)
        sgd, place = self.sgd, self.place
        velocity = sgd.momentum * self.velocity + (sgd.decay + sgd.pull) * place
        velocity[:, 0] += sgd.decay
        velocity[:, self.done + 1] += 1.0
        moves = active.cpu()[:, None]
        self.velocity = torch.where(moves, velocity, self.velocity)
        self.place = torch.where(moves, place - sgd.lr * velocity, place)
        self.done += 1

    def update(self) -> list[Tensor]:
        """See :class:`Course`."""
        return [change for layer in self.trained for change in layer.update()]


class PersonalNetwork:
    """Network with personal layers in place of its linear ones; each thread needs its own."""

    def __init__(self, network: Network) -> None:
        self.module = copy.deepcopy(network.body)
        self.layers: dict[str, PersonalLinear] = {}
        for name, layer in network.body.named_modules():
            if isinstance(layer, nn.Linear):
                self.layers[name] = PersonalLinear(layer)
                replace_layer(self.module, name, self.layers[name])
        self.head = PersonalLinear(network.head)

    @staticmethod
    def serves(network: Network) -> bool:
        """Return whether low-rank SGD applies to a network.

        Every shared parameter has to belong to a linear layer that is used once, on one row per
        image.
        """
        linear = [layer for layer in network.body.modules() if isinstance(layer, nn.Linear)]
        if not all(map(is_linear, linear)):
            return False
        if sum(1 for layer in linear for _ in layer.parameters()) != len(network.body_names):
            # There are other parameters, or layers share theirs.
            return False
        seen: list[tuple[int, ...]] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1]))
            for layer in linear
        ]
        with torch.no_grad():
            network.body(torch.zeros(3, *network.shape, device=network.device))
        for hook in hooks:
            hook.remove()
        return seen == [(3,)] * len(linear)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _weighted(slopes: list[Tensor], weights: list[Tensor]) -> Tensor:
    total = weights[0] * slopes[0]
    for c_j, D_j in zip(weights[1:], slopes[1:], strict=True):
        total = total + c_j * D_j
    return total
