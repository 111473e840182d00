"""Measuring training: `fit_resident` compared with `fit`, several GPUs with one, this machine with the articles."""
