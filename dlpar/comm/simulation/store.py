"""Putting what came into the buffer that was given for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dlpar.comm.simulation.ghost import Ghost
    from dlpar.comm.simulation.mailbox import Message


def store(message: Message, into: torch.Tensor) -> None:
    """Copy what came into a buffer that has room for it."""
    _check_room(message, into)
    payload, into = message.payload, into.detach()
    if payload.dtype == into.dtype and payload.shape == into.shape:
        into.copy_(payload)
    elif into.is_contiguous():
        into.view(-1).view(torch.uint8)[: message.nbytes] = payload.contiguous().view(-1).view(torch.uint8)
    else:
        whole = into.contiguous()
        store(message, whole)
        into.copy_(whole)


def store_head(message: Message, into: Ghost) -> None:
    """Of a message that carries sizes only, its head is all there is to keep."""
    _check_room(message, into)
    if getattr(into, "head", None) is not None:
        into.head.copy_(message.payload)


def _check_room(message: Message, into: Any) -> None:
    if message.nbytes > into.nbytes:
        raise ValueError(
            f"recv: there is room for {into.nbytes:,} bytes, but rank {message.source} sent "
            f"{message.nbytes:,} (tag {message.tag})"
        )
