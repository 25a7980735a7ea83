"""Closed forms of time: what messages, collectives and steps take on links that are known by two numbers.

    links.py collectives.py servers.py overlap.py waiting.py pipeline.py: one form a function, with its source
    steps/: `predict(experiment)`, which puts them together, and follows messages where steps run into each other

A message of B bytes takes ``latency + B / bandwidth`` seconds; every rank has a port that
carries one message out and one in at a time (LogGP, Alexandrov et al. 1995, with a port at
each end; the rules are those of :mod:`dlpar.worlds.simulated.network`).
"""

from __future__ import annotations

from dlpar.jobs.memory_check import ModelState, model_state, zero_bytes
from dlpar.theory.collectives import collective_seconds, fitted
from dlpar.theory.overlap import (
    Overlapped,
    buckets,
    exposed_seconds,
    gossip_seconds,
    local_sgd_seconds,
    overlapped,
)
from dlpar.theory.pipeline import bubble
from dlpar.theory.servers import ps_asp_seconds, ps_round_seconds, ps_step_seconds, two_level_ps_seconds
from dlpar.theory.steps import Prediction, predict
from dlpar.theory.waiting import expected_slowest, ssp_bounds
from dlpar.worlds.platforms.platform import Link

__all__ = [
    "Link", "ModelState", "Overlapped", "Prediction", "bubble", "buckets", "collective_seconds", "expected_slowest",
    "exposed_seconds", "fitted", "gossip_seconds", "local_sgd_seconds", "model_state", "overlapped", "predict",
    "ps_asp_seconds", "ps_round_seconds", "ps_step_seconds", "ssp_bounds", "two_level_ps_seconds", "zero_bytes",
]  # fmt: skip
