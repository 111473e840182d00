"""Notebooks run headless: which ones, on which devices, how they ended, and what they measured.

`rocmlab.runs.command.main` is the verb, `rocmlab.runs.run.run` the function behind it. Below them are rooms, of
which each needs only those before it: `ground`; `asking`, what is to be run; `places`, where; `warm` and `engine`, one
notebook in one kernel; `working`, the processes of a run; `report`; `outcome`; `screen`. `bench` measures.
"""
