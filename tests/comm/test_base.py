"""What every carrier uses: how a message lands in its tensor, and a lock that follows a GPU."""

from __future__ import annotations

import pytest
import torch

from dlpar.comm.base import DeviceLock, fill


@pytest.mark.parametrize(
    "room",
    [torch.full((4,), 7.0), torch.full((2, 2), 7.0).t(), torch.full((4, 2), 7.0)[:, 0]],
    ids=["contiguous", "transposed", "a column"],
)
def test_a_short_message_leaves_the_rest_of_its_room_as_it_was(room):
    room = room.clone(memory_format=torch.preserve_format)
    fill(room, torch.tensor([1.0, 2.0, 0.0, 0.0]), 8)  # the staging buffer is as long as the room
    assert room.flatten().tolist() == [1, 2, 7, 7]
    fill(room, torch.tensor([3.0, 4.0, 5.0, 6.0]).view(torch.uint8), 16)
    assert room.flatten().tolist() == [3, 4, 5, 6]


def test_an_error_of_the_gpu_releases_its_lock(monkeypatch):
    """Else the thread that holds it ends with the error, and the other waits for ever."""

    def broken(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "current_stream", broken)
    lock = DeviceLock(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="illegal memory access"), lock:
        pass
    assert lock._lock.acquire(blocking=False)
