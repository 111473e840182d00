"""The processes of a run: workers, the converter, warm parents, and those who watch over them."""
