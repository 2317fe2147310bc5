"""Applications: functions that consume, and the worker that runs them. `App` is exported by `mqdb_client`.

app             `App`: begin here
listener        a function, its messages, and what becomes of those that it fails
listener_group, app_consumers   those of a group as one listener; the consumers that run them
arguments       what a listener is called with
bodies, body_types, reading_back   how values are written and read
app_crons       recurring jobs
"""
