"""`mqdb dlq`: look at messages that groups have given up, repair them, and send them back to work.

dead_letter_commands   the commands; choice: which messages, on which brokers
letters                what is printed
redrive, redriver      sending back to work, in batches
"""
