package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// patience is longer than anything takes on a busy machine.
const patience = 40 * time.Second

// A place is the topic of one case, and the clients that the case has started. Its end closes them in the background.
type place struct {
	endpoint string
	// The name of the topic and, unless there is another one, of the consumer group.
	topic   string
	group   string
	clients []interface{ GracefulStop() error }
}

func (p *place) config() *rmq.Config {
	keys := &credentials.SessionCredentials{
		AccessKey: os.Getenv("SDK_ACCESS_KEY"), AccessSecret: os.Getenv("SDK_SECRET_KEY"),
	}
	group := p.group
	if group == "" {
		group = p.topic
	}
	return &rmq.Config{Endpoint: p.endpoint, ConsumerGroup: group, Credentials: keys}
}

func (p *place) producer(options ...rmq.ProducerOption) (rmq.Producer, error) {
	producer, err := rmq.NewProducer(p.config(), append(options, rmq.WithTopics(p.topic))...)
	if err != nil {
		return nil, err
	}
	p.clients = append(p.clients, producer)
	return producer, producer.Start()
}

func (p *place) checkingProducer(check func(*rmq.MessageView) rmq.TransactionResolution) (rmq.Producer, error) {
	return p.producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
}

func (p *place) push(listener func(*rmq.MessageView) rmq.ConsumerResult) (rmq.PushConsumer, error) {
	return p.filteredPush(rmq.SUB_ALL, 8, listener)
}

func (p *place) filteredPush(
	filter *rmq.FilterExpression, threads int32, listener func(*rmq.MessageView) rmq.ConsumerResult,
) (rmq.PushConsumer, error) {
	consumer, err := rmq.NewPushConsumer(
		p.config(),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{p.topic: filter}),
		rmq.WithPushConsumptionThreadCount(threads),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}),
		rmq.WithPushMaxCacheMessageCount(1024),
	)
	if err != nil {
		return nil, err
	}
	p.clients = append(p.clients, consumer)
	return consumer, consumer.Start()
}

func (p *place) simple() (rmq.SimpleConsumer, error) {
	consumer, err := rmq.NewSimpleConsumer(
		p.config(),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{p.topic: rmq.SUB_ALL}),
	)
	if err != nil {
		return nil, err
	}
	p.clients = append(p.clients, consumer)
	return consumer, consumer.Start()
}

func (p *place) message(body string) *rmq.Message {
	return &rmq.Message{Topic: p.topic, Body: []byte(body)}
}

func (p *place) close() {
	for _, client := range p.clients {
		go func() { _ = client.GracefulStop() }()
	}
}

// send sends a message and returns the receipt.
func send(producer rmq.Producer, message *rmq.Message) (*rmq.SendReceipt, error) {
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return nil, err
	}
	if len(receipts) != 1 {
		return nil, fmt.Errorf("there are %d receipts of one message", len(receipts))
	}
	return receipts[0], nil
}

func sendAll(producer rmq.Producer, messages ...*rmq.Message) error {
	for _, message := range messages {
		if _, err := send(producer, message); err != nil {
			return err
		}
	}
	return nil
}

// A delivery is one to one consumer.
type delivery struct {
	view     *rmq.MessageView
	body     string
	attempt  int32
	consumer int
	at       time.Time
}

// An inbox has the deliveries that consumers have got, in the order of their arrival.
type inbox struct {
	mutex      sync.Mutex
	deliveries []delivery
}

func (i *inbox) put(view *rmq.MessageView, consumer int) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.deliveries = append(
		i.deliveries, delivery{view, string(view.GetBody()), view.GetDeliveryAttempt(), consumer, time.Now()})
}

// listen is a listener that always succeeds.
func (i *inbox) listen(view *rmq.MessageView) rmq.ConsumerResult {
	i.put(view, 0)
	return rmq.SUCCESS
}

func (i *inbox) all() []delivery {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return append([]delivery{}, i.deliveries...)
}

func (i *inbox) bodies() []string {
	bodies := []string{}
	for _, each := range i.all() {
		bodies = append(bodies, each.body)
	}
	return bodies
}

// waitFor waits until there are so many, and then a while for those that should not come.
func (i *inbox) waitFor(count int, more time.Duration) []delivery {
	until := time.Now().Add(patience)
	for len(i.all()) < count && time.Now().Before(until) {
		time.Sleep(10 * time.Millisecond)
	}
	if len(i.all()) >= count {
		time.Sleep(more)
	}
	return i.all()
}
