"""What every package may use, with the standard library alone: problems, atomic files, process identity."""
