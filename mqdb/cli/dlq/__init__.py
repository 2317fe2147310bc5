"""`mqdb dlq`: inspect messages that groups gave up, repair them, and redrive them.

dead_letter_commands   the commands; choice: which messages, on which brokers
letters                what is printed
redrive, redriver      sending back to work, in batches
"""
