"""Tools for a class: a JupyterHub, and the release and grading of exercises."""
