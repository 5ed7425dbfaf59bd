"""rllm-core: data, pipeline, extension points and command line of rllm."""

__version__ = "0.1.0"
