"""How tensors move between ranks: one interface, several carriers."""

from dlpar.comm.base import ANY, Arrival, Comm, Packet, Recorder, Request, World

__all__ = ["ANY", "Arrival", "Comm", "Packet", "Recorder", "Request", "World"]
