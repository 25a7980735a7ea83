"""The torch.distributed carrier, tested by gloo, which needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from trained_ranks import trained

import dlpar
from dlpar import Experiment

from .test_devices import SHORT, SPLITS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero 1", "zero 3", "tensor, transformer", "spatial", "hybrid"])
def test_gloo_stands_in_for_nccl_in_every_split(name):
    fields = {**SHORT, "dtype": "float64", **SPLITS[name]}
    found = dlpar.launch(Experiment(**fields, cluster={"carrier": "gloo"})).wait(60)
    assert set(found.ranks["carrier"]) == {"gloo"}
    np.testing.assert_allclose(found.curve["loss"], trained(**fields).losses, rtol=1e-9)
