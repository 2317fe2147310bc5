"""What dispatch keeps: how far each service is, and the consume queues."""
