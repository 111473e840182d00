"""What is wrong with this machine or its lab, why, and how to fix it; checks only read and never change anything."""

from rocmlab.doctor.examine import Report, Wanted, blocking, on_container, on_host, refuse
from rocmlab.doctor.model import Check, Finding, exit_code
from rocmlab.doctor.situation import Situation

__all__ = [
    "Check",
    "Finding",
    "Report",
    "Situation",
    "Wanted",
    "blocking",
    "exit_code",
    "on_container",
    "on_host",
    "refuse",
]
