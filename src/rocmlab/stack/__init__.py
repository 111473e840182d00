"""Settings, and starting and stopping the lab under either runtime."""
