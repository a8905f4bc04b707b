"""The recursions that the algorithms share."""
