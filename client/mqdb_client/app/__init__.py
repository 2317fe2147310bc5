"""Applications: functions that consume, and the worker that runs them. `App` is exported by `mqdb_client`.

app             `App`: start here
listener        a function, its messages, and the handling of its failures
listener_group, app_consumers   the listeners of a group combined; the consumers that run them
arguments       the arguments of a listener
bodies, body_types, reading_back   writing and reading values as bodies
app_crons       recurring jobs
"""
