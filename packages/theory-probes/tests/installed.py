"""Uses the field from an installed wheel, with nothing but what it requires."""

import torch

from theory_probes.constraint_layers import (
    BinaryLinearConstraintLayer,
    GeneralLinearConstraintLayer,
    simplex,
)

y = torch.tensor([1.0, 2.0, 3.0])
torch.testing.assert_close(BinaryLinearConstraintLayer(simplex(3))(y), torch.softmax(y, -1))
torch.testing.assert_close(
    GeneralLinearConstraintLayer(simplex(3))(y), torch.tensor([0.0, 0.0, 1.0])
)
