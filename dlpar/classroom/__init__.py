"""A classroom: a JupyterHub for a class, and exercises released and graded."""
