"""Results for readers: tables as Markdown, CSV and LaTeX."""
