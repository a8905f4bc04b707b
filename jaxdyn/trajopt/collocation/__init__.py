"""Direct collocation."""
