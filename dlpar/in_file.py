"""Images that stay in their file: a rank reads those its batches are made of, and no others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dlpar.cache import Arrays, cached


class InFile:
    """Samples of a file that is mapped into memory, in place of a tensor of them.

    Reading is left to the operating system, which fetches a page of a file (mostly 4 kB) when a
    byte of it is asked for, and keeps it for all processes of the machine while there is room.

    Parameters
    ----------
    pixels : numpy.memmap, shape (images, channels, height, width)
        The file.
    rows : ndarray of int64, shape (n,)
        Which of its images, in which order.
    ready : callable
        From pixels to what a model reads, sample by sample.
    device : torch.device or str
        Where samples are wanted.

    Attributes
    ----------
    read : int
        Bytes of the images given out by :meth:`index_select` so far.
    """

    def __init__(
        self,
        pixels: np.memmap,
        rows: np.ndarray,
        ready: Callable[[np.ndarray], Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        self.pixels, self.rows, self.ready = pixels, rows, ready
        self.device, self.read = torch.device(device), 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the tensor."""
        return len(self), *self.ready(self.pixels[self.rows[:0]]).shape[1:]

    def __getitem__(self, which: slice) -> Tensor:
        """Some samples, for a look or a test: they are not counted."""
        return self.ready(self.pixels[self.rows[which]]).to(self.device)

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """The samples at `indices`, (n,); `dim` is 0, as of a tensor of which one wants samples."""
        pixels = self.pixels[self.rows[indices.numpy(force=True)]]
        self.read += pixels.nbytes
        return self.ready(pixels).to(self.device)

    def to(self, device: torch.device | str) -> InFile:
        """A reader of its own for the same samples, which has read nothing yet."""
        return InFile(self.pixels, self.rows, self.ready, device)


def kept_by_file(what: str, pixels: np.memmap, rows: np.ndarray, make: Callable[[], Arrays]) -> Arrays:
    """``make()``, which reads `rows` of a file: done by one rank of a machine, once for this state of the file.

    Parameters
    ----------
    what : str
        Tells apart what is kept of a file.
    pixels : numpy.memmap
        The file.
    rows : ndarray of int64
        What of it is read.
    make : callable
        Named arrays.
    """
    path = Path(pixels.filename)
    state = path.stat()
    which = (
        f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {hashlib.sha256(rows.tobytes()).hexdigest()}"
    )
    return cached(f"{what}-1-{hashlib.sha256(which.encode()).hexdigest()[:24]}", make)
