"""Simulated hosts with AMD GPUs, which AMD's own tools accept as real: for tests, and for people without a GPU."""

from rocmlab.devices.simulated.faults import KINDS, Fault, parse_fault
from rocmlab.devices.simulated.hosts import PARTITIONS, PROFILES
from rocmlab.devices.simulated.loads import PATTERNS
from rocmlab.devices.simulated.processes import GpuUse
from rocmlab.devices.simulated.products import PRODUCTS
from rocmlab.devices.simulated.writer import Live, is_ours, write_host

__all__ = [
    "KINDS",
    "PARTITIONS",
    "PATTERNS",
    "PRODUCTS",
    "PROFILES",
    "Fault",
    "GpuUse",
    "Live",
    "is_ours",
    "parse_fault",
    "write_host",
]
