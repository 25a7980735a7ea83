"""Tensors as host memory that MPI can read and write: those of a GPU by way of pinned memory."""

from __future__ import annotations

import torch
from mpi4py import MPI


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, contiguous in host memory: the tensor itself where it is so already."""
    if tensor.is_cpu:
        return tensor.contiguous()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor.detach())


def landing(into: torch.Tensor) -> torch.Tensor:
    """The host tensor to receive into: `into` itself where MPI can write to it."""
    if into.is_cpu and into.is_contiguous():
        return into
    return torch.empty(into.shape, dtype=into.dtype, pin_memory=into.is_cuda)


def landed(wire: torch.Tensor, into: torch.Tensor) -> None:
    """Bring what arrived to where it belongs; a GPU fetches it from pinned memory while the rank goes on."""
    if wire is not into:
        into.detach().copy_(wire, non_blocking=True)


def memory_of(tensor: torch.Tensor) -> MPI.buffer:
    """A contiguous host tensor's memory, for MPI."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
