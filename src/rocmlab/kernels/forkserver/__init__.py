"""The fork server's program: it has imported a framework and forks kernels, each in a fraction of a second.

All modules here are standard library only. `server`, `child`, `guards`, `messages` and what they load run under the
kernel's interpreter, which need not have rocmlab.
"""
