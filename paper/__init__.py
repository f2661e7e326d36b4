"""What reproduces the papers and writes the pages of results: ``python -m paper`` lists its commands."""
