"""What the GPUs of this host do, who uses them, and what they did: one sampler feeds every view."""
