"""Simulated world: one process holds all ranks, and a scheduler decides which rank runs next.

`run` builds a world and runs a program on it. `comm` defines the calls of ranks, and `network` the times of
messages. `mailbox` matches messages with receives. `simulator` holds the events and the tasks of ranks.
"""
