"""Keeps what a cell prints while no page is connected: in the notebook's file, and for the page that opens it next."""
