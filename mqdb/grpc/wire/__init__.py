"""Messages of SDKs and answers to them: conversion between values, without I/O.

messages      messages of the log for SDKs, and theirs for the log
settings      the answer to the settings of a client
status        the outcome of a call
times         times and durations
rocketmq_pb2  made of rocketmq.proto
"""
