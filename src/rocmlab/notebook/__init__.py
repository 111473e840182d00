"""The engine that runs one notebook: it uses the kernel's protocol directly, saves atomically and repairs wrong status.

Nothing here imports papermill or nbclient before it is needed, because a short notebook spends most of its time there.
"""
