"""What came of a run, and of earlier ones: results, retries, continuing, comparing, listing."""
