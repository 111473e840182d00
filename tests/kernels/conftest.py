"""What kernels of these tests need."""

from run_fixtures import kernel as kernel
