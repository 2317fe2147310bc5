// RocketMQ 5's Go SDK against a server of its protocol.
//
//	go run . ENDPOINT PREFIX CASE...
//	go run . worker ENDPOINT TOPIC GROUP
//
// The topic of a case is named PREFIX-CASE and exists already; its consumer group has the same name. Each case prints a
// line of JSON, {"case", "ok", "seconds", "detail"}. Several cases run at a time, because most of them wait. SDK_TLS in
// the environment asks for TLS, SDK_ACCESS_KEY and SDK_SECRET_KEY for signatures.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

const atATime = 4

func main() {
	_, rmq.EnableSsl = os.LookupEnv("SDK_TLS")
	if os.Args[1] == "worker" {
		work(os.Args[2], os.Args[3], os.Args[4])
	}
	endpoint, prefix, names := os.Args[1], os.Args[2], os.Args[3:]
	waiting := make(chan string, len(names))
	for _, name := range names {
		waiting <- name
	}
	close(waiting)
	var saying sync.Mutex
	var workers sync.WaitGroup
	for i := 0; i < atATime; i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for name := range waiting {
				begin := time.Now()
				detail := any(nil)
				if err := run(endpoint, prefix, name); err != nil {
					detail = err.Error()
				}
				line, _ := json.Marshal(map[string]any{
					"case": name, "ok": detail == nil, "seconds": time.Since(begin).Seconds(), "detail": detail,
				})
				saying.Lock()
				fmt.Println(string(line))
				saying.Unlock()
			}
		}()
	}
	// A push consumer closes when its long poll has ended, up to 20 s later. Only the case "close" waits for that.
	workers.Wait()
}

func run(endpoint string, prefix string, name string) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	test, ok := cases[name]
	if !ok {
		return fmt.Errorf("there is no case %s", name)
	}
	place := &place{endpoint: endpoint, topic: prefix + "-" + name}
	defer place.close()
	return test(place)
}
