from .options import checked_path as checked_path
