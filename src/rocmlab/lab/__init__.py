"""What lives inside Jupyter: the kernels it offers and the configuration of its server."""
