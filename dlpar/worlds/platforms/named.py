"""The platforms that have a name, and where their figures come from.

Bandwidths are what programs reach, not what the label says.  Where a figure is
an assumption its source says so.
"""

from __future__ import annotations

from dlpar.worlds.platforms.platform import Device, Link, Platform

MOST_RANKS = 8192
"""Devices of a named cluster: more than any simulation needs."""

SEPARATOR = "; "
"""Between the parts of a source: device, inside, between."""

_TF = "TensorFlow benchmarks of May 2017 (one GPU, synthetic data, fp32, batch 64 but"

_DEVICES = {
    "cpu": (
        Device(name="CPU server, 16 cores", flops=1e12, memory_gib=64),
        "CPU: assumed, half the peak of 16 cores at 2 GHz with AVX-512",
    ),
    "k80": (
        Device(
            name="K80, one of its two GPUs",
            flops=1.2e12,
            memory_gib=12,
            rates={"inception3": 30.5, "resnet50": 51.9, "resnet152": 20.0, "alexnet": 656, "vgg16": 35.4},
        ),
        f"K80: {_TF} AlexNet 512, ResNet-152 and VGG-16 32, Compute Engine), FLOP/s as ResNet-50 sustains them",
    ),
    "p100": (
        Device(
            name="P100",
            flops=5.1e12,
            memory_gib=16,
            rates={"inception3": 142, "resnet50": 219, "resnet152": 91.8, "alexnet": 2987, "vgg16": 154},
        ),
        f"P100: {_TF} AlexNet 512, DGX-1), FLOP/s as ResNet-50 sustains them",
    ),
    "v100": (
        Device(name="V100", flops=8.9e12, memory_gib=16, rates={"resnet50": 384}),
        "V100: NVIDIA DeepLearningExamples, MXNet ResNet-50 v1.5 (one GPU of a DGX-1, fp32, batch 96, "
        "container 20.12), FLOP/s as ResNet-50 sustains them",
    ),
    "h100": (
        Device(name="H100 SXM", flops=405e12, memory_gib=80),
        "H100: 41 % of the 989 TFLOP/s of dense bf16, which Megatron-LM's README reports of its smallest model",
    ),
}

DEVICES: dict[str, Device] = {name: device for name, (device, _) in _DEVICES.items()}
"""Devices by name."""

# NCCL: what it expects of a link, in src/graph/topo.h, and of a step of a ring before its bytes, in tuning.cc
# (version 2.8, protocol Simple).
_PCIE = Link(5.7e-6, 12e9), "PCIe 3 x16: 12 GB/s and 5.7 us (NCCL)"
_NVLINK2 = Link(3.4e-6, 120e9), "NVLink 2: six links of 20 GB/s, and 3.4 us (NCCL)"
_NVLINK4 = Link(3.4e-6, 370e9), "NVLink 4: 18 links of 20.6 GB/s (NCCL 2.18), 3.4 us assumed as of NVLink 2"
_MEMORY = Link(1e-6, 5e9), "shared memory: 5 GB/s and 1 us assumed"

_NODES = {
    "cpu": (1, _MEMORY),
    "k80": (8, _PCIE),
    "p100": (4, _PCIE),
    "v100": (8, _NVLINK2),
    "h100": (8, _NVLINK4),
}
"""Devices a node holds, and what joins them: as in p2.8xlarge, Horovod's benchmark, DGX-1V and DGX H100."""

_NETWORKS = {
    "1gbe": (Link(50e-6, 117e6), "1 GbE: 94 % of the line, which TCP's headers leave, 50 us assumed"),
    "10gbe": (Link(30e-6, 1.1e9), "10 GbE, TCP: 88 % of the line and 30 us assumed"),
    "25gbe": (
        Link(30e-6, 1.9e9),
        "25 GbE, TCP: 61 % of the line, from the 30 % that VGG-16 gains by RDMA (Horovod, arXiv 1802.05799), "
        "30 us assumed",
    ),
    "25gbe-roce": (Link(9.6e-6, 2.8e9), "25 GbE, RoCE: 90 % of the line assumed, 9.6 us (NCCL)"),
    "100gb-ib": (Link(9.6e-6, 12e9), "100 Gb InfiniBand EDR, one card a node: 12 GB/s and 9.6 us (NCCL)"),
    "400gb-ib": (
        Link(9.6e-6, 48e9),
        "400 Gb InfiniBand NDR, a card a GPU: 96 % of the line assumed, 9.6 us (NCCL)",
    ),
}


def _cluster(device: str, network: str | None, nic: str = "shared") -> Platform:
    """Nodes of a device joined by a network; without one, a single node."""
    spec, measured = _DEVICES[device]
    devices, (inside, joined) = _NODES[device]
    between, *wired = _NETWORKS[network] if network else (None,)
    return Platform(
        name=f"{device}-{network or 'nvlink'}",
        source=SEPARATOR.join((measured, joined, *wired)),
        device=spec,
        nic=nic,
        devices=devices,
        nodes=MOST_RANKS // devices if network else 1,
        inside=inside,
        between=between,
    )


_ALL_GPUS_HAVE = ("1gbe", "10gbe", "25gbe", "25gbe-roce", "100gb-ib")

PLATFORMS: dict[str, Platform] = {
    known.name: known
    for known in (
        *(
            _cluster(device, network)
            for device in ("k80", "p100", "v100", "h100")
            for network in _ALL_GPUS_HAVE
        ),
        _cluster("h100", "400gb-ib", nic="each"),
        _cluster("v100", None),
        _cluster("h100", None),
        _cluster("cpu", "1gbe"),
        _cluster("cpu", "10gbe"),
    )
}
"""Platforms by name; ``here``, this machine, is not among them: see :func:`dlpar.worlds.platforms.platform`."""
