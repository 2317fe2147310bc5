"""Applications: functions that consume, and the worker that runs them. `App` is exported by `mqdb_client`."""
