"""This machine as a node of a Ray cluster: its ports and token, the node itself, and how a program uses the cluster.

Ray is imported late, and only by what talks to a cluster.
"""
