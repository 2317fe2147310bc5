"""`mqdb dlq`: look at messages that groups have given up, repair them, and send them back to work."""
