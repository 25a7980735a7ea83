"""Communication between ranks: the interface, and ghosts, which have a size but no data."""

from dlpar.comm.base import ANY, Arrival, Comm, Keeper, Packet, Recorder, Request, World, wait_all

__all__ = ["ANY", "Arrival", "Comm", "Keeper", "Packet", "Recorder", "Request", "World", "wait_all"]
