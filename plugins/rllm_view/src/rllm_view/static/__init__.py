"""A page that holds its own answers: one file, for a mail, an archive or a browser without a server."""

from rllm_view.static.page import write_page

__all__ = ["write_page"]
