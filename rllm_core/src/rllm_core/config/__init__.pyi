from .keys import known_keys as known_keys, section_of as section_of
from .layers import COMMAND_LINE as COMMAND_LINE, Tier as Tier
from .overrides import read_override as read_override
from .paths import leaves as leaves
from .problems import as_config_error as as_config_error, describe as describe, parse as parse
from .run_registry import import_modules as import_modules
from .save import FILE_NAME as FILE_NAME, read_config as read_config
from .unused import covers as covers
