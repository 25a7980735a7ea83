"""Closed forms: what messages, collectives and steps should cost on links that are known by two numbers.

    collectives.py counts.py      one collective: seconds; messages and bytes
    servers.py mixing.py          parameter servers; averaging with neighbours
    overlap.py waiting.py         communication beside computation; the slowest of several workers
    pipeline.py layers.py         schedules of stages; what the ranks of one replica send for each layer
    step.py                       `predict(experiment)`, which puts them together for a whole step
    scaling.py calibrate.py       speed-up, efficiency and crossings; this machine as a platform

A message of B bytes takes ``latency + B / bandwidth`` seconds; every rank has a port that
carries one message out and one in at a time (LogGP, Alexandrov et al. 1995, with a port at
each end; the rules are those of :mod:`dlpar.worlds.simulated.network`).
"""

from __future__ import annotations

from dlpar.jobs.memory_check import ModelState, model_state
from dlpar.theory.collectives import collective_seconds, fitted
from dlpar.theory.counts import closed_form, zero_bytes
from dlpar.theory.layers import sizes
from dlpar.theory.mixing import contraction, neighbour_seconds
from dlpar.theory.overlap import Overlapped, buckets, overlapped
from dlpar.theory.pipeline import bubble
from dlpar.theory.servers import ps_asp_seconds, ps_round_seconds, ps_step_seconds
from dlpar.theory.step import Prediction, predict
from dlpar.theory.waiting import expected_slowest
from dlpar.worlds.platforms import Link

__all__ = [
    "Link", "ModelState", "Overlapped", "Prediction", "bubble", "buckets", "closed_form", "collective_seconds",
    "contraction", "expected_slowest", "fitted", "model_state", "neighbour_seconds", "overlapped", "predict",
    "ps_asp_seconds", "ps_round_seconds", "ps_step_seconds", "sizes", "zero_bytes",
]  # fmt: skip
