"""What command-line programs are made of: configurations, files, exit codes, and comparisons with other libraries."""
