"""A soak: an embedded broker under a steady load, with Prometheus and a browser that look at it.

    python3 -m benchmarks.soak --minutes 30

It needs Debian's prometheus and chromium, and mqdb[test]. Each minute it prints a line of JSON: memory, threads,
descriptors and CPU of each process, the time from send to listener, and how far the metrics lag behind the truth. Four
minutes come on top: in all of them Prometheus is gone, in the last two the browser as well.
"""
