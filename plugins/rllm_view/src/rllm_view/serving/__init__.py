"""The pages and their answers over HTTP, for a browser on this machine."""
