"""Tools for a class: a JupyterHub, and release and grading of exercises."""
