"""What developers measure: `rocmlab bench up|devices|runner|telemetry|cluster` in a clone. Not part of the package."""
