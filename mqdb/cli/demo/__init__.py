"""The demo: real flight records through a broker of its own, every message accounted for.

command, scenario, demo_result   begin here; what happens, and what is shown of it
account, flights                 what was to come; the messages
broker, publish, member, child   the processes
"""
