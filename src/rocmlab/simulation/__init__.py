"""Simulated hosts with AMD GPUs, which AMD's own tools accept as real: for tests, and for people without a GPU."""

from rocmlab.simulation.faults import KINDS, Fault, parse_fault
from rocmlab.simulation.hosts import PARTITIONS, PROFILES
from rocmlab.simulation.loads import PATTERNS
from rocmlab.simulation.processes import GpuUse
from rocmlab.simulation.products import PRODUCTS
from rocmlab.simulation.running import driver, environment
from rocmlab.simulation.writer import Live, is_ours, write_host

__all__ = [
    "KINDS",
    "PARTITIONS",
    "PATTERNS",
    "PRODUCTS",
    "PROFILES",
    "Fault",
    "GpuUse",
    "Live",
    "driver",
    "environment",
    "is_ours",
    "parse_fault",
    "write_host",
]
