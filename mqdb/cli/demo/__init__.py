"""The demo: it sends real flight records through its own broker, and accounts for every message.

command, scenario, demo_result   begin here; what happens, and what is shown of it
account, flights                 what was to come; the messages
broker, publish, member, child   the processes
"""
