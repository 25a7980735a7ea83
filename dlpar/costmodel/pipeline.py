"""Closed forms of a pipeline: its bubble, the time stages stand idle over the time they compute, and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
"""Schedules with a closed form, by the names they are published under."""


def bubble(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Idle over ideal seconds of a batch: 0.25 makes it take 1.25 times as long as without a bubble.

    ===============  =====================  ===========================================
    schedule         bubble                 source
    ===============  =====================  ===========================================
    gpipe, 1f1b      (p - 1) / m            Narayanan et al., arXiv 2104.04473, 2.2.1
    interleaved      (p - 1) / (v m)        Narayanan et al., arXiv 2104.04473, 2.2.2
    zb-h1            (p - 1) / (3 m)        Qi et al., arXiv 2401.10241, table 2
    zb-h2            0                      Qi et al., arXiv 2401.10241, table 2
    ===============  =====================  ===========================================

    Stages are equal and messages take no time.  The zero-bubble schedules cut the backward
    pass in two, with respect to inputs and to weights, each as long as the forward pass;
    H1 keeps the memory of 1f1b, H2 takes up to twice as much.

    Parameters
    ----------
    schedule : str
        One of :data:`SCHEDULES`.
    stages, microbatches : int
        p and m, from 1.
    chunks : int, default 1
        v, the parts of the model that each stage holds; above 1 with interleaved only.

    Raises
    ------
    ValueError
        If the name is none of these, or a number is not allowed.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: got {schedule!r}, allowed is one of {', '.join(SCHEDULES)}")
    for field, value in {"stages": stages, "microbatches": microbatches, "chunks": chunks}.items():
        if value < 1:
            raise ValueError(f"{field}: got {value}, allowed is a whole number from 1")
    if chunks > 1 and schedule != "interleaved":
        raise ValueError(f"chunks: got {chunks}, allowed with schedule {schedule} is 1")
    share = (stages - 1) / microbatches
    return {"interleaved": share / chunks, "zb-h1": share / 3, "zb-h2": 0.0}.get(schedule, share)


class Sent(NamedTuple):
    """What a stage sends in a step."""

    messages: int
    nbytes: int


def boundary_traffic(
    elements: Sequence[int], stages: int, samples: int, microbatches: int, itemsize: int = 4
) -> list[Sent]:
    """What each stage sends a step: over each boundary activations one way and as many gradients back.

    A boundary between transformer blocks carries b s h elements each way for a micro-batch
    of b sequences of s tokens in h dimensions (Narayanan et al., arXiv 2104.04473, 3.2).
    What stages with a weight in common add up is not counted.

    Parameters
    ----------
    elements : sequence of int
        Of a sample's activations at each boundary between parts of the model, one less than parts.
    stages : int
        Part k is on stage ``k % stages``.
    samples, microbatches : int
        Of a replica's step, and how many pieces they go in.
    itemsize : int, default 4
        Bytes of an element.
    """
    sent = [Sent(0, 0)] * stages
    for boundary, width in enumerate(elements):
        for stage in (boundary % stages, (boundary + 1) % stages):
            messages, nbytes = sent[stage]
            sent[stage] = Sent(messages + microbatches, nbytes + samples * width * itemsize)
    return sent
