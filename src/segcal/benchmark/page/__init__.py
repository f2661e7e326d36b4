"""The document that the report page shows, made from a folder of results."""
