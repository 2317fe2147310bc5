"""What SDKs say and are told: values without I/O.

messages      messages of the log for SDKs, and theirs for the log
settings      what a client is told when it has said who it is
status        how a call has ended
times         times and durations
rocketmq_pb2  made of rocketmq.proto
"""
