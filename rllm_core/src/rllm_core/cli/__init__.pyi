from .role_flag import ROLE_FLAG as ROLE_FLAG, require_roles as require_roles
from .tables import print_table as print_table
