"""The Tinker API as a backend of rllm, and a local server that speaks the same protocol."""
