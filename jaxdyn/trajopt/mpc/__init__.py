"""Model predictive control."""
