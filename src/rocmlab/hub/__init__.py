"""JupyterHub on this machine: one hub, and for each user a lab in a container or under the user's own account."""
