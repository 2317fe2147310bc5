// RocketMQ's own Go client against a server of its protocol: sends, consumes, and has one message fail once.
//
//	go run . host:port topic
//
// Prints a line of JSON, {"case", "ok", "seconds", "detail", "figures"}, and exits with 0 if all is well.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	count    = 20
	patience = 90 * time.Second
)

func main() {
	rlog.SetLogLevel("error")
	begin := time.Now()
	figures, err := try(os.Args[1], os.Args[2])
	detail := any(nil)
	if err != nil {
		detail = err.Error()
	}
	line, _ := json.Marshal(map[string]any{
		"case": "go", "ok": err == nil, "seconds": time.Since(begin).Seconds(), "detail": detail, "figures": figures,
	})
	fmt.Println(string(line))
	if err != nil {
		os.Exit(1)
	}
}

func try(server string, topic string) (map[string]any, error) {
	figures := map[string]any{}
	resolver := primitive.NewPassthroughResolver([]string{server})
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver), producer.WithGroupName(topic+"-producers"), producer.WithRetry(2))
	if err != nil {
		return figures, err
	}
	if err := sender.Start(); err != nil {
		return figures, err
	}
	defer sender.Shutdown()
	ids := map[string]string{}
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("body %d", i)
		message := primitive.NewMessage(topic, []byte(body)).WithTag(fmt.Sprintf("tag%d", i%2))
		message.WithKeys([]string{fmt.Sprintf("key%d", i)})
		message.WithProperty("own", body)
		result, err := sender.SendSync(context.Background(), message)
		if err != nil {
			return figures, fmt.Errorf("send: %w", err)
		}
		if result.Status != primitive.SendOK {
			return figures, fmt.Errorf("status of the send: %v", result.Status)
		}
		ids[body] = result.MsgID
	}
	return figures, consume(resolver, topic, ids, figures)
}

func consume(resolver primitive.NsResolver, topic string, ids map[string]string, figures map[string]any) error {
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(resolver),
		consumer.WithGroupName(topic+"-consumers"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	var lock sync.Mutex
	times := map[string]int{}
	failed := time.Time{}
	faults := []string{}
	done := make(chan struct{}, 1)
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			body := string(message.Body)
			times[body]++
			if message.MsgId != ids[body] || message.GetProperty("own") != body || message.Topic != topic {
				faults = append(faults, message.String())
			}
			if body == "body 3" && message.ReconsumeTimes == 0 {
				failed = time.Now()
				if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					concurrent.DelayLevelWhenNextConsume = 1
				}
				return consumer.ConsumeRetryLater, nil
			}
			if body == "body 3" {
				figures["first_retry_seconds"] = time.Since(failed).Seconds()
			}
		}
		if len(times) == count && times["body 3"] == 2 {
			done <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := reader.Subscribe(topic, consumer.MessageSelector{}, listen); err != nil {
		return err
	}
	if err := reader.Start(); err != nil {
		return err
	}
	defer reader.Shutdown()
	select {
	case <-done:
	case <-time.After(patience):
	}
	lock.Lock()
	defer lock.Unlock()
	if len(faults) > 0 {
		return fmt.Errorf("differs from what was sent: %v", faults)
	}
	for i := 0; i < count; i++ {
		wanted := 1
		if i == 3 {
			wanted = 2
		}
		if body := fmt.Sprintf("body %d", i); times[body] != wanted {
			return fmt.Errorf("%s came %d times, expected %d; all: %v", body, times[body], wanted, times)
		}
	}
	return nil
}
