"""The packed sequence of a request, without weights: as rows, as a table, as a picture."""

from armillary.layout.rows import Layout, Run

__all__ = ["Layout", "Run"]
