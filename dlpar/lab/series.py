"""A curve that never holds more than a fixed number of points, however long the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Series:
    """Rows of one curve, thinned by doubling the stride whenever they fill up.

    Parameters
    ----------
    columns : int
        Numbers in a row.
    limit : int
        Most rows held; even.

    Notes
    -----
    Of the rows added, number 0, s, 2s, 3s … are kept, where the stride s is a
    power of two; what is drawn is always a measured row, never an average.
    """

    def __init__(self, columns: int, limit: int = 2000) -> None:
        self.limit, self.stride, self.seen = limit, 1, 0
        self._rows = np.empty((min(limit, 64), columns))
        self._size = 0
        self._sent = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> np.ndarray:
        """What is held, float64 of shape (points, columns)."""
        return self._rows[: self._size]

    def add(self, row: Sequence[float]) -> None:
        """Take the next row in; it is dropped unless the stride falls on it."""
        number, self.seen = self.seen, self.seen + 1
        if number % self.stride:
            return
        if self._size == self.limit:
            self._thin()
            if number % self.stride:
                return
        self._push(row)

    def finish(self, row: Sequence[float]) -> None:
        """End the curve on `row`, its last, whether or not the stride falls on it."""
        if self._size and self._rows[self._size - 1, 0] == row[0]:
            return
        if self._size == self.limit:
            self._thin()
        self._push(row)

    def replace(self, rows: np.ndarray) -> None:
        """Hold `rows` instead: of shape (points, columns), the last `limit` of them."""
        self._rows = np.array(rows, dtype=float).reshape(-1, self._rows.shape[1])[-self.limit :]
        self._size, self._sent, self.stride = len(self._rows), -1, 1

    def take_new(self) -> tuple[bool, np.ndarray]:
        """``(whole, rows)`` for a reader who saw all earlier calls: only new rows, or all of them anew."""
        whole, start = self._sent < 0, max(self._sent, 0)
        self._sent = self._size
        return whole, self.rows[start:]

    def _push(self, row: Sequence[float]) -> None:
        if self._size == len(self._rows):
            more = min(self.limit, max(64, 2 * self._size)) - self._size
            self._rows = np.concatenate([self._rows, np.empty((more, self._rows.shape[1]))])
        self._rows[self._size] = row
        self._size += 1

    def _thin(self) -> None:
        kept = self.rows[::2]
        self._rows[: len(kept)] = kept
        self._size, self._sent = len(kept), -1
        self.stride *= 2
