"""Where a job runs: devices and their leases, who else uses them, and what the job uses of them."""
