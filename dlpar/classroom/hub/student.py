"""Start a student's server under her account: update her copy of the labs, then run JupyterLab.

Run it as ``python -m dlpar.classroom.hub.student [ARGUMENT…]``. Arguments go to ``jupyterhub-singleuser``.
Besides the usual variables of JupyterHub it needs only ``$DLPAR_LABS``, the folder of the shared labs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dlpar.config.paths import private_folder, runtime_folder
from dlpar.course.release import bring, is_master

FOLDER = "dlpar-labs"
"""The student's copy, in her home."""

NICE = 19
"""Nice value of her server, kernels and jobs: the hub must answer while thirty students compute."""

LONGEST_RUNTIME = 107 - len("/kernel-00000000-0000-0000-0000-000000000000-ipc-5")
"""Maximum bytes in the path of the folder of kernels' sockets, so that a socket's path has at most 107."""


def main() -> None:
    """Replace this process with the student's JupyterLab. Never returns."""
    os.umask(0o077)  # only she may read her files
    os.nice(NICE)
    own = Path.home() / FOLDER
    hand_out(Path(os.environ["DLPAR_LABS"]), own)
    sockets = os.environ["JUPYTER_RUNTIME_DIR"] = str(private_folder(runtime_folder() / "jupyter"))
    # Over TCP, the usual transport, every account of this machine could read what a kernel prints.
    transport = "ipc" if len(os.fsencode(sockets)) <= LONGEST_RUNTIME else "tcp"
    _prepend("JUPYTER_CONFIG_PATH", Path(__file__).with_name("server"))
    _prepend("PATH", Path(sys.executable).parent, os.defpath)
    arguments = [f"--ServerApp.root_dir={own}", f"--KernelManager.transport={transport}"]
    os.chdir(own)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterhub.singleuser", *arguments, *sys.argv[1:]])


def _prepend(variable: str, folder: Path, usual: str = "") -> None:
    os.environ[variable] = os.pathsep.join(filter(None, [str(folder), os.environ.get(variable, usual)]))


def hand_out(labs: Path, own: Path) -> None:
    """Update the student's copy, unless the labs hold solutions. Write errors to her server's log."""
    try:
        if is_master(labs):
            raise PermissionError(f"{labs} holds solutions; `dlpar release` makes a version without")
        bring(labs, own)
    except OSError as error:  # a full disk must not lock her out of her files
        print(f"the labs could not be copied to {own}: {error}", file=sys.stderr)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)


if __name__ == "__main__":
    main()
