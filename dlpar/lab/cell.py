"""Which notebook cell is being run."""

from __future__ import annotations


def this_cell() -> tuple[str, str] | None:
    """``(cell, execution)`` ids of the running cell, or None outside JupyterLab.

    The same cell run again has the same first and another second id.
    """
    try:
        from IPython import get_ipython

        parent = get_ipython().kernel.get_parent("shell")
        return parent["metadata"]["cellId"], parent["header"]["msg_id"]
    except (ImportError, AttributeError, KeyError, TypeError):
        return None
