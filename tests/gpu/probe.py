"""What this GPU's driver, its torch and its MPI do, by single calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import dlpar

READ = """
import ctypes, sys
into, libc = ctypes.create_string_buffer(8), ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t)]
here, there = Vector(ctypes.addressof(into), 8), Vector(int(sys.argv[2]), 8)
read = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(read, "errno", ctypes.get_errno())
"""
"""Program that reads 8 bytes of another process, as Open MPI reads a long message."""


def microseconds(call: Callable[[], object], n: int = 50) -> tuple[float, float]:
    """Return what a call costs the host, and what it takes until the GPU has done it."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        call()
    told = time.perf_counter() - began
    torch.cuda.synchronize()
    return told / n * 1e6, (time.perf_counter() - began) / n * 1e6


def calls() -> None:
    """Print what copies and single calls cost."""
    pinned = torch.full((1 << 26,), 7, dtype=torch.uint8, pin_memory=True)
    command = [sys.executable, "-c", READ, str(os.getpid()), str(pinned.data_ptr())]
    told = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    print("another process reads pinned memory (8 is good, else set OMPI_MCA_smsc=^cma):", told)
    there, x = torch.empty(1 << 26, dtype=torch.uint8, device="cuda"), torch.zeros(4096, device="cuda")
    to_host = microseconds(lambda: pinned.copy_(there))[1]
    to_gpu = microseconds(lambda: there.copy_(pinned, non_blocking=True))[1]
    print(f"64 MiB to the host {to_host:.0f} µs, to the GPU {to_gpu:.0f} µs")
    stream = torch.cuda.current_stream(0)
    costs = {
        "an event": microseconds(lambda: torch.cuda.Event(enable_timing=True).record(stream))[0],
        "an addition": microseconds(lambda: x.add_(1.0), 500)[0],
        "4,096 pinned numbers": microseconds(lambda: torch.empty(4096, pin_memory=True))[0],
        "reading a number": microseconds(lambda: x[0].item())[0],
    }
    print("the host's µs of", ", ".join(f"{name} {cost:.1f}" for name, cost in costs.items()))


def products() -> None:
    """Print the speed of products by the alignment of a weight, in full precision and in TF32."""
    n = 4096
    flat, a = torch.randn(n * n + 4, device="cuda"), torch.randn(n, n, device="cuda")
    for offset in (0, 2, 1):
        weight = flat[offset : offset + n * n].view(n, n)
        for tf32 in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            seconds = microseconds(lambda weight=weight: a @ weight.t(), 20)[1] / 1e6
            name = "TF32" if tf32 else "full"
            print(
                f"{name} product, weight {weight.data_ptr() % 16} bytes off 16: {2 * n**3 / seconds / 1e12:.0f} TFLOP/s"
            )
    torch.backends.cuda.matmul.allow_tf32 = False


def launches(device: str) -> None:
    """Print the seconds of a whole job of two steps; the first of a kind is cold."""
    for carrier in ("nccl", "mpi", "nccl", "mpi") if device == "cuda" else ("mpi", "gloo"):
        began = time.time()
        cluster = {"device": device, "carrier": carrier}
        dlpar.launch(dlpar.Experiment(workers=1, steps=2, cluster=cluster)).wait(90)
        print(f"1 worker, 2 steps, {carrier}: {time.time() - began:.1f} s")


if __name__ == "__main__":
    device = os.environ["DLPAR_GPU_DEVICE"]
    print("torch", torch.__version__, "· Python", sys.version.split()[0], "·", os.cpu_count(), "cores")
    if device == "cuda":
        began = time.time()
        torch.zeros(1, device="cuda").item()
        name, kernels = torch.cuda.get_device_name(0), ", ".join(torch.cuda.get_arch_list())
        print(f"{name}: context in {time.time() - began:.2f} s; kernels for {kernels}")
        calls()
        products()
    launches(device)
