"""The process, and the outside world that ends or watches it.

signals   signals that ask the process to end
systemd   signs of life for the systemd that has started it
"""
