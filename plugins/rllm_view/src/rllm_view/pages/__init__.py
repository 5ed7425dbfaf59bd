"""What the browser gets: one page, its style, and ES modules that are used as they are written."""
