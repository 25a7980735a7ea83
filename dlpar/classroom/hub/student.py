"""What the hub starts for a student, in her account: her own copy of the labs, then her JupyterLab.

``python -m dlpar.classroom.hub.student [ARGUMENT…]``; arguments go to ``jupyterhub-singleuser``.  It needs nothing of
the hub but what JupyterHub gives every server, and the folder of the shared labs in ``$DLPAR_LABS``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dlpar.classroom.grading.release import is_master
from dlpar.classroom.hub.copies import bring
from dlpar.config.paths import private_folder, runtime_folder

FOLDER = "dlpar-labs"
"""Her copy, in her home."""

POLITE = 19
"""By how much her server, kernels and jobs let the hub go first: it must answer while thirty students compute.
It counts where sessions are no scheduling groups (:mod:`dlpar.classroom.hub.priority`)."""

LONGEST_RUNTIME = 107 - len("/kernel-00000000-0000-0000-0000-000000000000-ipc-5")
"""Bytes of the folder of kernels' sockets, so that a socket's path has at most 107."""


def main() -> None:
    """Never returns."""
    os.umask(0o077)  # whatever she makes is hers alone
    os.nice(POLITE)
    own = Path.home() / FOLDER
    hand_out(Path(os.environ["DLPAR_LABS"]), own)
    os.environ |= environment()
    arguments = [f"--ServerApp.root_dir={own}", f"--KernelManager.transport={transport()}"]
    if os.getuid() == 0:
        arguments.append("--allow-root")  # a try of root's own; nobody logs in as root
    os.chdir(own)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterhub.singleuser", *arguments, *sys.argv[1:]])


def hand_out(labs: Path, own: Path) -> None:
    """Bring her copy up to date, but from no labs that hold solutions; what goes wrong goes into her server's log."""
    try:
        if is_master(labs):
            raise PermissionError(
                f"{labs} holds solutions; `dlpar release FOLDER` makes what students may have"
            )
        bring(labs, own)
    except OSError as error:  # a full disk must not lock her out of what she has
        print(f"the labs could not be copied to {own}: {error}", file=sys.stderr)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)


def environment() -> dict[str, str]:
    """What her server and her kernels get besides."""
    ours = [str(Path(__file__).with_name("server")), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    return {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, ours)),
        "JUPYTER_RUNTIME_DIR": str(_sockets()),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def transport() -> str:
    """How server and kernel talk.  By TCP, as is usual, whoever is on this machine could hear what a kernel prints."""
    return "ipc" if len(os.fsencode(_sockets())) <= LONGEST_RUNTIME else "tcp"


def _sockets() -> Path:
    return private_folder(runtime_folder() / "jupyter")


if __name__ == "__main__":
    main()
