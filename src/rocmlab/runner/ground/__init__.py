"""What all of the runner stands on: jobs and results, files, words, the run folder, processes."""
