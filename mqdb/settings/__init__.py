"""The settings of a process: what a user may set, and where each value came from.

settings      `Settings`, all of them, and `load_settings`
values        kinds of values, with their bounds
layers        arguments, environment, file and defaults, and which of them wins
broker_list   the databases that the settings name
"""

from mqdb.settings.settings import SettingLine, Settings, load_settings, unknown_variables

__all__ = ["SettingLine", "Settings", "load_settings", "unknown_variables"]
