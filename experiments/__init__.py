"""Scripts that read a file of `configs/`, call the library, and print and store the results."""
