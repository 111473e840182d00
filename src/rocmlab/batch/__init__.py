"""A run for a site's own scheduler: what `rocmlab export` writes, what one element of it runs, and how all end as one.

The run's folder is an ordinary one. Its journal is begun here, each task keeps a part of its own next to it, and
`collect` puts the parts together. Nothing else is shared, so elements on many machines do not disturb each other.
"""
