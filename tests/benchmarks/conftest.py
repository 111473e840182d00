"""What benchmarks that run notebooks need."""

from run_fixtures import kernel as kernel
