"""What `rocmlab bench runner` measures."""
