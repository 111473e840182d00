"""Ray clusters: `node`, this machine as a node of one, and `executor`, which runs jobs there."""
