"""``make faults``: hundreds of small jobs of every kind, one fault in each.

Nothing of a job may be left 2 s after the fault; its message names rank and cause; what it
recorded can be read.  The same seed gives the same rounds, up to the moments at which processes
are hit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@contextmanager
def private_folders() -> Iterator[Path]:
    """Give folders of their own to all that rounds start, with a full disk where an account may mount one."""
    root = Path(tempfile.mkdtemp(prefix="dlf-"))  # short: a socket's path must stay under 108 bytes
    for name in ("tmp", "disk"):
        (root / name).mkdir()
    os.environ |= {"DLPAR_RUNTIME": str(root / "r"), "TMPDIR": str(root / "tmp"), "DLPAR_SLOTS": ""}
    os.environ |= {
        "DLPAR_PLUGINS": "breaking",
        "PYTHONPATH": HERE + os.pathsep + os.environ.get("PYTHONPATH", ""),
    }
    tempfile.tempdir = None
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root / "disk")]
    mounted = subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0
    try:
        yield root
    finally:
        from dlpar.jobs import fork_server

        fork_server._ask(fork_server._socket_path(), "no code at all")  # it leaves
        if mounted:
            subprocess.run(["umount", str(root / "disk")])
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    asked = argparse.ArgumentParser(prog="make faults", description=__doc__.splitlines()[0])
    asked.add_argument("--rounds", type=int, default=300)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--kinds", nargs="*", help="these kinds alone")
    asked = asked.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends this gets rid of its folders, too
        signal.signal(number, signal.default_int_handler)
    with private_folders() as root:
        from rounds import KINDS, Round

        names = asked.kinds or list(KINDS)
        if not (root / "disk").is_mount():
            names = [name for name in names if name != "disk full"]
            print("disk full: left out, this account may not mount a small disk")
        results = []
        try:
            for number in range(asked.rounds):
                round = Round(root, names[number % len(names)], f"{asked.seed} {number}")
                results.append(round.play())
                for complaint in results[-1].complaints:
                    print(f"round {number}: {complaint}", flush=True)
                (round.home / "filler").unlink(missing_ok=True)
                shutil.rmtree(round.home / "runs", ignore_errors=True)
        except KeyboardInterrupt:
            print(f"ended in round {number}")
    print(f"{'fault':24}{'rounds':>7}{'failed':>7}{'slowest until all is gone':>28}")
    for name in names:
        of_kind = [result for result in results if result.kind == name]
        if of_kind:
            slowest = max(result.seconds for result in of_kind)
            print(f"{name:24}{len(of_kind):7}{sum(bool(r.complaints) for r in of_kind):7}{slowest:26.2f} s")
    for field in ("world", "scheme", "split"):
        print(
            f"{field}s:",
            ", ".join(f"{k} {n}" for k, n in sorted(Counter(getattr(r, field) for r in results).items())),
        )
    failed = sum(bool(result.complaints) for result in results)
    print(f"{len(results)} rounds, {failed} failed")
    return int(failed > 0)


sys.exit(main())
