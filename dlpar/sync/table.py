"""Tables of rows on servers. Workers read rows through a cache, and add to rows.

Sources: Ho et al., "Petuum SSP" (NIPS 2013), for reads up to `staleness` clocks old that include a worker's
own writes; Li et al. (OSDI 2014, sections 4.2 and 3.6) for key caching and value filters; Microsoft's
Multiverso for ``Get`` and ``Add`` by rows.  Row r lives on server r mod S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from dlpar.comm import ANY, Comm, Request, wait_all

GET, ADD, ROWS, LEAVE = range(1, 5)
"""Tags of a request for rows, a clock with its additions, an answer, and the end."""

HEAD = 4
"""Integers in a message's header: number of rows, digest of their numbers, clock, and 1 if the numbers follow.
"""

DTYPE = torch.float64
"""Type of all values."""


def _wire(rows: Tensor, digest: int, clock: int, with_rows: bool, values: Tensor | None = None) -> Tensor:
    head = torch.tensor([len(rows), digest, clock, int(with_rows)])
    parts = [head, *([rows] if with_rows else []), *([values.reshape(-1)] if values is not None else [])]
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


class Table:
    """A worker's view of a table. Collective with :func:`serve` on the servers.

    Parameters
    ----------
    comm : Comm
        All ranks.
    servers : sequence of int
        Ranks that hold the rows.
    shape : (int, int)
        Rows and columns. All values begin at 0.
    staleness : int, default 0
        Maximum age of a row, in clocks, when it is read. 0: it includes every earlier clock of all others.
    threshold : float, default 0
        A row is held back for a later clock unless some value has changed by at least this much (a value
        filter).

    Attributes
    ----------
    counts : Counter
        ``gets`` and ``pulled``: rows requested, and rows missing in the cache.  ``keys`` and ``keys_saved``:
        row numbers sent, and row numbers that a server knew.  ``added`` and ``held_back``: rows sent, and
        rows that waited.
    """

    def __init__(
        self,
        comm: Comm,
        servers: Sequence[int],
        shape: tuple[int, int],
        staleness: int = 0,
        threshold: float = 0.0,
    ) -> None:
        self.comm, self.servers, self.staleness, self.threshold = comm, list(servers), staleness, threshold
        self.cache, self.changes = torch.zeros(shape, dtype=DTYPE), torch.zeros(shape, dtype=DTYPE)
        self.changed = torch.zeros(shape[0], dtype=torch.bool)
        self.stamp = torch.full((shape[0],), -1)  # the slowest worker's clock included in each cached row
        self.clock_now, self.counts = 0, Counter[str]()
        self.known: set[tuple[int, int]] = set()
        self.sending: list[Request] = []

    def get(self, rows: Tensor) -> Tensor:
        """Return `rows`, at most `staleness` clocks old: shape (n, columns). No row number may repeat."""
        old = rows[self.stamp[rows] < self.clock_now - self.staleness]
        asked = [(server, own) for n, server in enumerate(self.servers) if len(own := self._of(n, old))]
        for server, own in asked:
            self._send(server, GET, own)
        for server, own in asked:
            answer = torch.empty(8 * HEAD + own.numel() * self.cache[0].nbytes, dtype=torch.uint8)
            self.comm.recv(answer, server, ROWS)
            values = answer[8 * HEAD :].view(DTYPE).view(len(own), self.cache.shape[1])
            self.cache[own] = values + self.changes[own]  # a worker reads its own writes
            self.stamp[own] = answer[: 8 * HEAD].view(torch.int64)[2]
        self.counts.update(gets=len(rows), pulled=len(old))
        return self.cache[rows]

    def add(self, rows: Tensor, values: Tensor) -> None:
        """Add to rows. The others see the additions from the next clock on."""
        self.changes.index_add_(0, rows, values)
        self.cache.index_add_(0, rows, values)
        self.changed[rows] = True

    def clock(self, threshold: float | None = None) -> None:
        """End a clock. Send each server the additions to its rows."""
        least = self.threshold if threshold is None else threshold
        rows = self.changed.nonzero().view(-1)
        far = self.changes[rows].abs().amax(dim=1) >= least
        wait_all(self.sending)
        self.clock_now += 1
        for number, server in enumerate(self.servers):
            own = self._of(number, rows[far])
            self._send(server, ADD, own, self.changes[own])
        self.changes[rows[far]] = 0
        self.changed[rows[far]] = False
        self.counts.update(added=int(far.sum()), held_back=int((~far).sum()))

    def leave(self) -> None:
        """Send the remaining additions, and leave. The servers end after all workers have left."""
        self.clock(threshold=0.0)
        wait_all(self.sending)
        for server in self.servers:
            self.comm.send(torch.zeros(8 * HEAD, dtype=torch.uint8), server, LEAVE)

    def _of(self, server: int, rows: Tensor) -> Tensor:
        return rows[rows % len(self.servers) == server]

    def _send(self, server: int, kind: int, rows: Tensor, values: Tensor | None = None) -> None:
        digest = int.from_bytes(blake2b(rows.numpy().tobytes(), digest_size=7).digest())
        is_new = (server, digest) not in self.known
        self.known.add((server, digest))
        self.counts.update(**{"keys" if is_new else "keys_saved": len(rows)})
        wire = _wire(rows, digest, self.clock_now, is_new, values)
        self.sending.append(self.comm.isend(wire, server, kind))


def serve(
    comm: Comm, workers: Sequence[int], servers: Sequence[int], shape: tuple[int, int], staleness: int = 0
) -> Tensor:
    """Serve every S-th row until all workers have left. Return these rows.

    The arguments are as in :class:`Table`.

    A request at clock c is answered when the slowest worker has ended clock c - staleness.
    """
    own = torch.arange(shape[0])[servers.index(comm.rank) :: len(servers)]
    weights = torch.zeros(len(own), shape[1], dtype=DTYPE)
    inbox = torch.empty(8 * HEAD + len(own) * (8 + DTYPE.itemsize * shape[1]), dtype=torch.uint8)
    clocks, known = dict.fromkeys(workers, 0), dict[tuple[int, int], Tensor]()
    waiting: list[tuple[int, Tensor, int]] = []
    while clocks:
        arrival = comm.recv(inbox, ANY, ANY)
        worker, wire = arrival.source, inbox[: arrival.nbytes].clone()
        number, digest, clock, has_rows = wire[: 8 * HEAD].view(torch.int64).tolist()
        if arrival.tag == LEAVE:
            del clocks[worker]
        else:
            start = 8 * (HEAD + number * has_rows)
            if has_rows:
                known[worker, digest] = wire[8 * HEAD : start].view(torch.int64) // len(servers)
            rows = known[worker, digest]
            if arrival.tag == ADD:
                weights.index_add_(0, rows, wire[start:].view(DTYPE).view(number, shape[1]))
                clocks[worker] = clock
            else:
                waiting.append((worker, rows, clock))
        slowest = min(clocks.values(), default=0)
        may_go = [each for each in waiting if slowest >= each[2] - staleness]
        waiting = [each for each in waiting if slowest < each[2] - staleness]
        for client, rows, _ in may_go:
            comm.send(_wire(rows, 0, slowest, False, weights[rows]), client, ROWS)
    return weights
