from .checkpoint_config import config_of_checkpoint as config_of_checkpoint
from .configuring import (
    Request as Request,
    config_options as config_options,
    plan_for as plan_for,
    read_request as read_request,
)
from .role_flag import ROLE_FLAG as ROLE_FLAG, require_roles as require_roles
from .tables import print_table as print_table
