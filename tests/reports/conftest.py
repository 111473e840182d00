"""What runs of these tests need."""

from run_fixtures import *  # noqa: F403
