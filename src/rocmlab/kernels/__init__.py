"""Starting a kernel, giving it a lease, and ending it with all that it started: for JupyterLab and for runs."""
