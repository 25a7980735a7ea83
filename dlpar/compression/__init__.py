"""Gradient compression: codecs, error feedback for their errors, and exchanges that use both."""

from __future__ import annotations

from dlpar.compression.codecs import Codec, ErrorFeedback, Half, OneBit, TopK, codec, codec_of
from dlpar.compression.exchange import CompressedAllreduce, LossyComm

__all__ = [
    "Codec",
    "CompressedAllreduce",
    "ErrorFeedback",
    "Half",
    "LossyComm",
    "OneBit",
    "TopK",
    "codec",
    "codec_of",
]
