"""The process, and the outside world that ends or watches it.

signals   those that ask it to end
systemd   signs of life for the systemd that has started it
"""
