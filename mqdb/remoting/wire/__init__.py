"""The wire formats of the front: conversion between bytes and values, without I/O.

frame        one request or response, and its fields as values
codes        what is asked
bodies       bodies of JSON
answers      answers, and errors as clients read them
messages     messages as they are sent and pulled
check_point  how a popped message is acknowledged
send_header  what a send says beside its message
heartbeat    what a client says of itself and its groups
signature    whether a request is signed by its key
"""
