"""Reports of what a fit found."""
