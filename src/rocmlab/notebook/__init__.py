"""The engine that runs one notebook: it speaks to the kernel itself, saves atomically and tells the truth.

Nothing here imports papermill or nbclient before it is needed, because a short notebook spends most of its time there.
"""
