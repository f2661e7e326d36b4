"""The studies beside the main table, one a file; each returns data for figures and tables for readers."""
