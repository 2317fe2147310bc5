"""The settings of a process: what a user may set, and where each value came from.

settings      `Settings`, all of them, and `load_settings`
values        kinds of values, with their limits
layers        arguments, environment, file and defaults, and their precedence
broker_list   the databases in the settings
"""

from mqdb.settings.settings import SettingLine, Settings, load_settings, unknown_variables

__all__ = ["SettingLine", "Settings", "load_settings", "unknown_variables"]
