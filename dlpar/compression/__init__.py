"""Fewer bytes for a gradient: codecs, the memory that makes up for what they lose, and exchanges that use both."""

from __future__ import annotations

from dlpar.compression.codecs import Codec, Half, OneBit, TopK, codec
from dlpar.compression.exchange import CompressedAllreduce
from dlpar.compression.lossy_comm import LossyComm
from dlpar.compression.memory import Memory

__all__ = ["Codec", "CompressedAllreduce", "Half", "LossyComm", "Memory", "OneBit", "TopK", "codec"]
