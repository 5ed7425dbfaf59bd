"""Runs in an object store: copies of run directories under a URL of fsspec, such as `s3://bucket/runs`."""
