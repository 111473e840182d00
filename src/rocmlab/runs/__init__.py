"""Notebooks run headless: which ones, on which devices, how they ended, and what they measured.

`command.main` is `rocmlab run`, `run.run` the function behind it. `spec` is what is to be run, `scheduling` where and
when, `workers` the processes that do it, `outcome` results and continuing a run, `screen` what a user sees.
"""
