r"""How a dual value turns into a decision: the three links, each the derivative of a potential.

The layers minimise a divergence under :math:`Wx = b`, whose optimum is
:math:`x_i = \varphi_i(z_i)` at :math:`z = z_0 + W^\top\lambda`. With :math:`\Phi_i' = \varphi_i`
the dual is :math:`F(\lambda) = \sum_i \Phi_i(z_i) - \langle b, \lambda\rangle`, convex, with
gradient
:math:`Wx - b` and Hessian :math:`W\,\mathrm{diag}(\varphi'(z))\,W^\top`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Entropic:
    r"""Kullback-Leibler: :math:`e^z`, and :math:`u\,\sigma(z)` where there is an upper bound u.

    The second is the Fermi-Dirac entropy :math:`x\log x + (u-x)\log(u-x)`.

    Parameters
    ----------
    upper
        (n,) with infinities, or None if no variable has an upper bound.
    """

    def __init__(self, upper: Tensor | None) -> None:
        self.upper: Tensor | None = None
        # None also where every variable has a bound, which saves the choice in the inner loop.
        self.capped: Tensor | None = None
        if upper is not None and bool(torch.isfinite(upper).any()):
            capped = torch.isfinite(upper)
            self.capped = None if bool(capped.all()) else capped
            self.upper = torch.where(capped, upper, 1.0)

    def value(self, z: Tensor) -> Tensor:
        if self.upper is None:
            return z.exp()
        return self._choose(self.upper * torch.sigmoid(z), z)

    def slope(self, z: Tensor, x: Tensor) -> Tensor:
        if self.upper is None:
            return x
        s = torch.sigmoid(z)
        return self._choose(self.upper * s * (1 - s), z)

    def rise(self, z: Tensor, x: Tensor, step: Tensor) -> Tensor:
        """Phi(z + step) - Phi(z), for x = phi(z).

        With softplus(z) = max(z, 0) + softplus(-|z|), so that no digits of a large z are lost.
        """
        moved = z + step
        if self.upper is None:
            return moved.exp() - x
        softplus = torch.nn.functional.softplus
        kink = torch.where((z > 0) & (moved > 0), step, moved.clamp(min=0) - z.clamp(min=0))
        bounded = self.upper * (kink + softplus(-moved.abs()) - softplus(-z.abs()))
        if self.capped is None:
            return bounded
        free = torch.where(self.capped, 0.0, moved).exp() - x
        return torch.where(self.capped, bounded, free)

    def of(self, variables: Tensor) -> Entropic:
        """The link of some of the variables."""
        if self.upper is None:
            return self
        upper = self.upper[variables]
        if self.capped is not None:
            upper = torch.where(self.capped[variables], upper, torch.inf)
        return Entropic(upper)

    def _choose(self, bounded: Tensor, z: Tensor) -> Tensor:
        if self.capped is None:
            return bounded
        return torch.where(self.capped, bounded, torch.where(self.capped, 0.0, z).exp())


@dataclass(frozen=True)
class Clipped:
    r"""Euclidean: :math:`\min(\max(z, l), u)`.

    Parameters
    ----------
    lower, upper
        (n,) with infinities.
    """

    lower: Tensor
    upper: Tensor

    def value(self, z: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(z, self.lower), self.upper)

    def slope(self, z: Tensor, x: Tensor) -> Tensor:
        return ((z > self.lower) & (z < self.upper)).to(z.dtype)

    def rise(self, z: Tensor, x: Tensor, step: Tensor) -> Tensor:
        """Phi(z + step) - Phi(z), for x = phi(z).

        Phi = x (z - x / 2), written so that at a bound no digits of a large z are lost.
        """
        moved = self.value(z + step)
        return moved * step + (moved - x) * (z - 0.5 * (moved + x))


Link = Entropic | Clipped
