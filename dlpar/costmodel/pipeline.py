"""Closed forms of a pipeline's bubble: the time stages stand idle, over the time they compute."""

from __future__ import annotations

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
