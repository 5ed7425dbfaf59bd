from .configuring import Request as Request, config_options as config_options, read_request as read_request
from .playing import PlayPlan as PlayPlan, plan_to_play as plan_to_play
from .role_flag import ROLE_FLAG as ROLE_FLAG, require_roles as require_roles
from .tables import print_table as print_table
