"""How tensors move between ranks: one interface, several carriers."""

from dlpar.comm.base import ANY, Arrival, Comm, Request

__all__ = ["ANY", "Arrival", "Comm", "Request"]
