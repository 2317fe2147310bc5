"""A soak: an embedded broker under a steady load, watched by Prometheus and a browser.

    python3 -m benchmarks.soak --minutes 30

It needs Debian's prometheus and chromium, and mqdb[test]. Each minute it prints a line of JSON: memory, threads,
descriptors and CPU of each process, the time from send to listener, and how far the metrics lag behind the actual
values. Four more minutes follow: Prometheus is stopped in all of them, and the browser in the last two.
"""
