from .choices import import_modules as import_modules
from .external_sections import takes_key as takes_key
from .keys import (
    DEFAULT as DEFAULT,
    covers as covers,
    find_section as find_section,
    idle_reason as idle_reason,
    key_around as key_around,
    known_keys as known_keys,
    list_fields as list_fields,
    where_acts as where_acts,
)
from .layers import (
    COMMAND_LINE as COMMAND_LINE,
    Tier as Tier,
    read_config_text as read_config_text,
    read_override as read_override,
)
from .packaged import packaged_values as packaged_values
from .paths import ABSENT as ABSENT, KeyPath as KeyPath, leaves as leaves, split_key as split_key, value_at as value_at
from .problems import (
    as_config_error as as_config_error,
    describe as describe,
    parse as parse,
    show_value as show_value,
    unknown_key as unknown_key,
)
from .saved_config import FILE_NAME as FILE_NAME, read_config as read_config
from .yaml_text import as_yaml as as_yaml, read_yaml as read_yaml
