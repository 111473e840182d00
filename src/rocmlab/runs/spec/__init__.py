"""The request: notebooks, parameters, grids, lists and options, and whether it can be run."""
