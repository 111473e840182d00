"""PyTorch over the nodes of a Ray cluster, through Ray Train: connect, list the nodes, train, continue after a loss.

A notebook writes the training for one worker as a function; Ray sends it to the nodes, where it runs in the
interpreter of the notebook's kernel. Without a cluster Ray is started on this machine alone, and where Ray Train is
not installed the function runs in this process. Ray and PyTorch are imported late.
"""

from __future__ import annotations

from rocmlab.training.cluster.connection import Connection, close, connect, is_installed
from rocmlab.training.cluster.fitting import Outcome, fit
from rocmlab.training.cluster.team import Team, team

__all__ = ["Connection", "Outcome", "Team", "close", "connect", "fit", "is_installed", "team"]
