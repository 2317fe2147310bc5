package main

import (
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// work runs a push consumer until the process is killed. It prints ready, then got, the body and the attempt of each
// message.
func work(endpoint string, topic string, group string) {
	place := &place{endpoint: endpoint, topic: topic, group: group}
	listen := func(view *rmq.MessageView) rmq.ConsumerResult {
		fmt.Printf("got %s %d\n", view.GetBody(), view.GetDeliveryAttempt())
		return rmq.SUCCESS
	}
	for {
		_, err := place.push(listen)
		if err == nil {
			break
		}
		fmt.Fprintln(os.Stderr, err) // the server is being started again
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Println("ready")
	select {}
}
