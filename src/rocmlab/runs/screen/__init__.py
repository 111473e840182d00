"""What a user sees of a run: before it, while it runs, and at its end."""
