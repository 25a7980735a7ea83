"""The torch.distributed carrier, tested by gloo, which needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from trained_ranks import trained

import dlpar
from dlpar import Experiment

from .test_devices import SHORT, SPLITS


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["zero 1", "zero 3", "tensor, mlp", "tensor, transformer", "spatial", "batch normalisation", "hybrid"],
)
def test_gloo_stands_in_for_nccl_in_every_split(name):
    fields = {**SHORT, "dtype": "float64", **SPLITS[name]}
    found = dlpar.launch(Experiment(**fields, cluster={"carrier": "gloo"})).wait(60)
    assert set(found.ranks["carrier"]) == {"gloo"}
    np.testing.assert_allclose(found.curve["loss"], trained(**fields).losses, rtol=1e-9)
    # Layers' messages are the library's, which does not say how many bytes they are.
    assert found.steps["bytes"].isna().all() == ("zero" not in name)


def as_in_torch_2_11() -> None:
    """Give this process a ``new_group`` that sorts ranks always."""
    import torch.distributed as dist

    now = dist.new_group

    def then(
        ranks=None,
        timeout=None,
        backend=None,
        pg_options=None,
        use_local_synchronization=False,
        group_desc=None,
        device_id=None,
    ):
        return now(ranks, timeout, backend, pg_options, use_local_synchronization, group_desc, device_id)

    dist.new_group = then


def halved(_, key: int, prepare) -> float:
    """Split all ranks in two, add up in each half, and beside the computation."""
    import torch

    from dlpar.config.experiment import Cluster
    from dlpar.worlds.connect import connect

    prepare()
    comm = connect(Cluster(device="cpu", carrier="gloo"))
    half, total = comm.split(comm.rank % 2, key * comm.rank), torch.tensor([float(comm.rank)])
    half.allreduce(total)
    comm.start(lambda comm, bucket: comm.allreduce(bucket), total).wait()
    comm.close()
    return total.item()


@pytest.mark.slow
def test_groups_and_started_collectives_work_with_a_torch_that_sorts_ranks():
    assert dlpar.spmd(halved, 1, as_in_torch_2_11, workers=4, timeout=20) == [12.0] * 4


def test_a_torch_that_sorts_ranks_refuses_another_order_in_one_sentence():
    said = r"split: got ranks in the order \[[23], [01]\], allowed with torch .* and gloo is their own order"
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(halved, -1, as_in_torch_2_11, workers=4, timeout=20)


def test_a_receive_that_two_carriers_might_serve_is_refused():
    """The message has a tag and comes by MPI; a receive without one would listen to the other carrier for ever."""

    def mixed(_):
        import torch

        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cpu", carrier="gloo"))
        if comm.rank == 0:
            comm.send(torch.ones(3), 1, tag=5)
        else:
            comm.recv(torch.empty(3), 0)

    said = "recv: got tag ANY, allowed on gloo is a named source with tag 0, for a message without a tag, or"
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(mixed, workers=2, timeout=10)


def test_on_one_machine_ranks_listen_on_loopback_alone():
    def listening(comm):
        import psutil

        comm.barrier()
        found = psutil.Process().net_connections("inet")
        return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})

    for addresses in dlpar.spmd(listening, workers=2, carrier="gloo"):
        assert set(addresses) <= {"127.0.0.1", "::1"}
