"""Files for the browser: one page, its style, and ES modules without a build step."""
