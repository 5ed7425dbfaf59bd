from .command_groups import ForgivingGroup as ForgivingGroup
from .configuring import (
    FLAGS as FLAGS,
    MODEL_FLAG as MODEL_FLAG,
    PLANNING_FLAGS as PLANNING_FLAGS,
    ROLE_FLAG as ROLE_FLAG,
    ROLE_KEY as ROLE_KEY,
    Request as Request,
    config_options as config_options,
    plan_and_registry as plan_and_registry,
    plan_for as plan_for,
    read_request as read_request,
    require_roles as require_roles,
)
from .dry_run import list_values as list_values, show_values as show_values
from .plugins import commands_in as commands_in, describe_entry as describe_entry
