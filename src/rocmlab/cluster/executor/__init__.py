"""A run on a Ray cluster: where its places are, the Ray driver process, and what runs on each node.

The runner itself never imports Ray. A child process (`driving`) does, because Ray's core ends the process that uses it
when the cluster's head is lost; the runner then reports what became of its jobs, and can be resumed.
"""
