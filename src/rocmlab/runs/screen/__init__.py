"""What a person sees of a run: before it, while it goes on, and at its end."""
