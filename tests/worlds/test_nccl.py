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


def test_on_one_machine_ranks_listen_on_loopback_alone():
    def listening(comm):
        import psutil

        comm.barrier()
        found = psutil.Process().net_connections("inet")
        return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})

    for addresses in dlpar.spmd(listening, workers=2, carrier="gloo"):
        assert set(addresses) <= {"127.0.0.1", "::1"}
