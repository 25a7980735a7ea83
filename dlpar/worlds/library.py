"""What a library's collectives would do, by the collectives beside it, on clocks that are not the wall's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dlpar.comm.base import Comm, check_peer


class OwnLibrary(Comm):
    """All-reduce and the like by ring and tree, of tensors of any layout; a library does not tell what it sends."""

    def allreduce(self, tensor: torch.Tensor) -> None:
        from dlpar.collectives import ring_allreduce

        self._as_library(lambda flat: ring_allreduce(self, flat), _addable(tensor), tensor)

    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        from dlpar.collectives import tree_reduce

        check_peer(self, root, "root")
        self._as_library(lambda flat: tree_reduce(self, flat, root), _addable(tensor), tensor)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        from dlpar.collectives import tree_broadcast

        check_peer(self, root, "root")
        self._as_library(lambda flat: tree_broadcast(self, flat, root), tensor, tensor)

    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        from dlpar.collectives import ring_reduce_scatter

        ring_reduce_scatter(
            self, chunks, [*range(1, self.size), 0]
        )  # each rank's place is one less: it sums its own
        self.traffic.hidden()

    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        from dlpar.collectives import ring_allgather

        ring_allgather(self, chunks, [*range(1, self.size), 0])
        self.traffic.hidden()

    def _as_library(self, collective: Callable[[Any], None], values: Any, tensor: Any) -> None:
        """Run a collective on `values`, whatever their layout, and keep the result in `tensor`."""
        flat = values.detach().reshape(-1)
        collective(flat)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))
        self.traffic.hidden()


def _addable(tensor: Any) -> Any:
    """In a type a library adds in: half precision in float32."""
    return tensor.to(torch.float32) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
