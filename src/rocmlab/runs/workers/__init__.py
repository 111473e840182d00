"""The processes of a run: workers, the converter, fork servers, and those who watch over them."""
