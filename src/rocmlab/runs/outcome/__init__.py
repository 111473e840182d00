"""What came of a run, and of earlier ones: results, retries, going on, comparing, listing."""
