"""Communication between ranks: the interface, and ghosts, which are tensors without data."""

from dlpar.comm.base import ANY, Arrival, Comm, Keeper, Packet, Recorder, Request, World, wait_all

__all__ = ["ANY", "Arrival", "Comm", "Keeper", "Packet", "Recorder", "Request", "World", "wait_all"]
