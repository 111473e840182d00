"""Notebooks run headless: which ones, on which devices, how they ended, and what they measured.

`rocmlab.runner.command.main` is the verb, `rocmlab.runner.runs.run` the function behind it.
"""
