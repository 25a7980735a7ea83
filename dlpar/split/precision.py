"""Mixed precision: products in bfloat16, and in full what is kept from step to step.

Forward passes run under torch's autocast; backward passes follow the types they left behind.
Weights, their gradients and the optimizer's state stay as they are, and losses are in float32
(Micikevicius et al., arXiv 1710.03740, section 3.1).  That article's other remedy, to scale the
loss, is for float16: bfloat16 has the range of float32, and needs none (Kalamkar et al., arXiv
1905.12322).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def forward_pass(experiment: Experiment, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass."""
    return nullcontext() if experiment.precision == "full" else torch.autocast(device.type, torch.bfloat16)


def of_activations(experiment: Experiment) -> torch.dtype:
    """The type in which activations, and their gradients, travel between the ranks of a replica."""
    return getattr(torch, experiment.dtype) if experiment.precision == "full" else torch.bfloat16


def narrowed(x: torch.Tensor) -> torch.Tensor:
    """A tensor of floats as products take it at present: in a forward pass of mixed precision, in bfloat16."""
    kind = x.device.type
    if not (
        x.is_floating_point() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    ):
        return x
    return x.to(torch.get_autocast_dtype(kind))
