package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	aWhile = time.Second
	// How long a simple consumer keeps a message for itself.
	invisible = 30 * time.Second
)

// The cases. A new group gets only messages that are sent after it has begun, so each case starts its consumer first.
var cases = map[string]func(*place) error{
	"send":                 caseSend,
	"push":                 casePush,
	"tags":                 caseTags,
	"sql":                  caseSQL,
	"fifo":                 caseFifo,
	"delay":                caseDelay,
	"recall":               caseRecall,
	"transaction_commit":   caseTransactionCommit,
	"transaction_rollback": caseTransactionRollback,
	"transaction_check":    caseTransactionCheck,
	"retry":                caseRetry,
	"dlq":                  caseDLQ,
	"fifo_dlq":             caseFifoDLQ,
	"fifo_simple":          caseFifoSimple,
	"large":                caseLarge,
	"unknown_topic":        caseUnknownTopic,
	"slow":                 caseSlow,
	"restart":              caseRestart,
	"change_invisible":     caseChangeInvisible,
	"workers":              caseWorkers,
	"close":                caseClose,
}

func same(what string, wanted any, got any) error {
	if reflect.DeepEqual(wanted, got) {
		return nil
	}
	return fmt.Errorf("%s should be %v and is %v", what, wanted, got)
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

func bodies(stem string, count int) []string {
	made := []string{}
	for i := 0; i < count; i++ {
		made = append(made, fmt.Sprintf("%s %02d", stem, i))
	}
	return made
}

func attempts(deliveries []delivery) []int32 {
	found := []int32{}
	for _, each := range deliveries {
		found = append(found, each.attempt)
	}
	return found
}

func text(value *string) string {
	if value == nil {
		return "-"
	}
	return *value
}

// receive returns some messages, or none after the poll: the SDK has an error for that.
func receive(consumer rmq.SimpleConsumer, most int32) ([]*rmq.MessageView, error) {
	views, err := consumer.Receive(context.Background(), most, invisible)
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil, nil
	}
	return views, err
}

func receiveOne(consumer rmq.SimpleConsumer) (*rmq.MessageView, error) {
	for tries := 0; tries < 7; tries++ {
		if views, err := receive(consumer, 1); err != nil || len(views) > 0 {
			return append(views, nil)[0], err
		}
	}
	return nil, errors.New("no message came")
}

// -- sends and filters ---------------------------------------------------------------------------

func caseSend(p *place) error {
	const count = 10
	consumer, err := p.simple()
	if err != nil {
		return err
	}
	type received struct {
		views []*rmq.MessageView
		err   error
	}
	arriving := make(chan received, 1)
	go func() {
		views, err := receive(consumer, 32)
		arriving <- received{views, err}
	}()
	time.Sleep(time.Second)
	producer, err := p.producer()
	if err != nil {
		return err
	}
	before := time.Now()
	numbers := map[string]int{}
	for i := 0; i < count; i++ {
		message := p.message(fmt.Sprintf("body é %d", i))
		message.SetTag(fmt.Sprintf("tag%d", i%2))
		message.SetKeys(fmt.Sprintf("key%d", i), "all")
		message.AddProperty("number", strconv.Itoa(i))
		receipt, err := send(producer, message)
		if err != nil {
			return err
		}
		numbers[receipt.MessageID] = i
	}
	first := <-arriving
	views, err := first.views, first.err
	for tries := 0; err == nil && len(views) < count && tries < 8; tries++ {
		var more []*rmq.MessageView
		more, err = receive(consumer, 32)
		views = append(views, more...)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(same("number of ids", count, len(numbers)), same("number of messages", count, len(views))); err != nil {
		return err
	}
	for _, view := range views {
		i, isSent := numbers[view.GetMessageId()]
		if !isSent {
			return fmt.Errorf("not sent, or here twice: %v", view)
		}
		delete(numbers, view.GetMessageId())
		err := errors.Join(
			same("topic", p.topic, view.GetTopic()),
			same("body", fmt.Sprintf("body é %d", i), string(view.GetBody())),
			same("tag", fmt.Sprintf("tag%d", i%2), text(view.GetTag())),
			same("keys", []string{fmt.Sprintf("key%d", i), "all"}, view.GetKeys()),
			same("properties", map[string]string{"number": strconv.Itoa(i)}, view.GetProperties()),
			same("attempt", int32(1), view.GetDeliveryAttempt()),
			same("message group", "-", text(view.GetMessageGroup())),
			same("is delayed", false, view.GetDeliveryTimestamp() != nil),
			same("is without a born host", false, text(view.GetBornHost()) == "" || view.GetBornHost() == nil),
		)
		if err != nil {
			return err
		}
		if born := view.GetBornTimestamp(); born == nil || born.Before(before.Add(-time.Second)) || born.After(time.Now()) {
			return fmt.Errorf("born at %v", born)
		}
		if err := consumer.Ack(context.Background(), view); err != nil {
			return err
		}
	}
	return nil
}

func casePush(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	sent := bodies("push", 50)
	for _, body := range sent {
		if _, err := send(producer, p.message(body)); err != nil {
			return err
		}
	}
	got.waitFor(len(sent), aWhile)
	return same("messages", sent, sorted(got.bodies()))
}

func caseTags(p *place) error {
	got := &inbox{}
	filter := rmq.NewFilterExpressionWithType("a || b", rmq.TAG)
	if _, err := p.filteredPush(filter, 8, got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	wanted := []string{}
	for _, body := range bodies("tags", 5) {
		messages := []*rmq.Message{p.message(body + " untagged")}
		for _, tag := range []string{"a", "b", "c"} {
			message := p.message(body + " " + tag)
			message.SetTag(tag)
			messages = append(messages, message)
		}
		if err := sendAll(producer, messages...); err != nil {
			return err
		}
		wanted = append(wanted, body+" a", body+" b")
	}
	got.waitFor(len(wanted), aWhile)
	return same("messages", wanted, sorted(got.bodies()))
}

func caseSQL(p *place) error {
	got := &inbox{}
	filter := rmq.NewFilterExpressionWithType("number > 5 AND (color = 'red' OR TAGS = 'blue')", rmq.SQL92)
	if _, err := p.filteredPush(filter, 8, got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	for i := 0; i < 10; i++ {
		red, blue, green := p.message(fmt.Sprint("red ", i)), p.message(fmt.Sprint("blue ", i)), p.message(fmt.Sprint("green ", i))
		red.AddProperty("color", "red")
		blue.SetTag("blue")
		green.AddProperty("color", "green")
		for _, message := range []*rmq.Message{red, blue, green} {
			message.AddProperty("number", strconv.Itoa(i))
		}
		if err := sendAll(producer, red, blue, green); err != nil {
			return err
		}
	}
	if _, err := send(producer, p.message("nothing")); err != nil {
		return err
	}
	wanted := []string{"blue 6", "blue 7", "blue 8", "blue 9", "red 6", "red 7", "red 8", "red 9"}
	got.waitFor(len(wanted), aWhile)
	return same("messages", wanted, sorted(got.bodies()))
}

func caseLarge(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	body := strings.Repeat("0123456789abcdef", 4*1024*1024/16)
	if _, err := send(producer, p.message(body)); err != nil {
		return err
	}
	got.waitFor(1, aWhile)
	return same("is the same body", true, reflect.DeepEqual(got.bodies(), []string{body}))
}

func caseUnknownTopic(p *place) error {
	unknown := &place{endpoint: p.endpoint, topic: p.topic + "-none"}
	_, err := unknown.producer()
	if err != nil && strings.Contains(err.Error(), v2.Code_TOPIC_NOT_FOUND.String()) {
		return nil
	}
	return fmt.Errorf("a producer for a topic that does not exist: %v", err)
}

// -- order -----------------------------------------------------------------------------------------

func caseFifo(p *place) error {
	got := &inbox{}
	for i := 0; i < 2; i++ {
		if _, err := p.push(got.listen); err != nil {
			return err
		}
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	groups, sent := []string{"one", "two", "three"}, bodies("fifo", 20)
	for _, body := range sent {
		for _, group := range groups {
			message := p.message(body)
			message.SetMessageGroup(group)
			if _, err := send(producer, message); err != nil {
				return err
			}
		}
	}
	deliveries := got.waitFor(len(sent)*len(groups), aWhile)
	for _, group := range groups {
		found := []string{}
		for _, each := range deliveries {
			if text(each.view.GetMessageGroup()) == group {
				found = append(found, each.body)
			}
		}
		if err := same("messages of group "+group, sent, found); err != nil {
			return err
		}
	}
	return nil
}

func caseFifoDLQ(p *place) error {
	got := &inbox{}
	_, err := p.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		got.put(view, 0)
		if string(view.GetBody()) == "poison" {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	if err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	for _, body := range []string{"poison", "next"} {
		message := p.message(body)
		message.SetMessageGroup("one")
		if _, err := send(producer, message); err != nil {
			return err
		}
	}
	got.waitFor(3, 8*time.Second)
	// The SDK consumes the rest of its batch while a failed message waits.
	return same("deliveries", []string{"next", "poison", "poison"}, sorted(got.bodies()))
}

func caseFifoSimple(p *place) error {
	consumer, err := p.simple()
	if err != nil {
		return err
	}
	sent := bodies("fifo", 4)
	go func() {
		time.Sleep(time.Second)
		if producer, err := p.producer(); err == nil {
			for _, body := range sent {
				message := p.message(body)
				message.SetMessageGroup("one")
				_, _ = send(producer, message)
			}
		}
	}()
	view, err := receiveOne(consumer)
	if err != nil {
		return err
	}
	early, err := receive(consumer, 1)
	if err != nil {
		return err
	}
	if err := same("number of messages before the first ack", 0, len(early)); err != nil {
		return err
	}
	found := []string{string(view.GetBody())}
	for len(found) < len(sent) {
		if err := consumer.Ack(context.Background(), view); err != nil {
			return err
		}
		if view, err = receiveOne(consumer); err != nil {
			return err
		}
		found = append(found, string(view.GetBody()))
	}
	return errors.Join(same("messages", sent, found), consumer.Ack(context.Background(), view))
}

// -- times -----------------------------------------------------------------------------------------

func caseDelay(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	due := time.Now().Add(3 * time.Second)
	later := p.message("later")
	later.SetDelayTimestamp(due)
	if err := sendAll(producer, later, p.message("now")); err != nil {
		return err
	}
	deliveries := got.waitFor(2, aWhile)
	if err := same("messages", []string{"now", "later"}, got.bodies()); err != nil {
		return err
	}
	if !deliveries[0].at.Before(due) {
		return errors.New("the other message came with the delayed one")
	}
	if early := due.Sub(deliveries[1].at); early > time.Millisecond { // the protocol's clock
		return fmt.Errorf("came %v too early", early)
	}
	said := deliveries[1].view.GetDeliveryTimestamp()
	if said == nil || said.UnixMilli() != due.UnixMilli() {
		return fmt.Errorf("the delivery time should be %v and is %v", due, said)
	}
	return nil
}

func caseRecall(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	due := time.Now().Add(5 * time.Second)
	recalled, kept := p.message("recalled"), p.message("kept")
	recalled.SetDelayTimestamp(due)
	kept.SetDelayTimestamp(due)
	receipt, err := send(producer, recalled)
	if err != nil {
		return err
	}
	if _, err := send(producer, kept); err != nil {
		return err
	}
	id, err := producer.Recall(context.Background(), p.topic, receipt.RecallHandle)
	if err != nil {
		return err
	}
	got.waitFor(1, 2*time.Second)
	return errors.Join(
		same("recalled id", receipt.MessageID, id),
		same("messages", []string{"kept"}, got.bodies()),
	)
}

// -- transactions ------------------------------------------------------------------------------------

func caseTransactionCommit(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.checkingProducer(func(*rmq.MessageView) rmq.TransactionResolution { return rmq.UNKNOWN })
	if err != nil {
		return err
	}
	transaction := producer.BeginTransaction()
	message := p.message("half")
	message.SetTag("tag")
	if _, err := producer.SendWithTransaction(context.Background(), message, transaction); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if err := same("messages before the commit", []string{}, got.bodies()); err != nil {
		return err
	}
	if err := transaction.Commit(); err != nil {
		return err
	}
	deliveries := got.waitFor(1, aWhile)
	if err := same("messages", []string{"half"}, got.bodies()); err != nil {
		return err
	}
	return same("tag", "tag", text(deliveries[0].view.GetTag()))
}

func caseTransactionRollback(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.checkingProducer(func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT })
	if err != nil {
		return err
	}
	back, committed := producer.BeginTransaction(), producer.BeginTransaction()
	if _, err := producer.SendWithTransaction(context.Background(), p.message("rolled back"), back); err != nil {
		return err
	}
	if err := back.RollBack(); err != nil {
		return err
	}
	if _, err := producer.SendWithTransaction(context.Background(), p.message("committed"), committed); err != nil {
		return err
	}
	if err := committed.Commit(); err != nil {
		return err
	}
	// Longer than until a check would come and commit it.
	got.waitFor(1, 8*time.Second)
	return same("messages", []string{"committed"}, got.bodies())
}

func caseTransactionCheck(p *place) error {
	got, checked := &inbox{}, &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.checkingProducer(func(view *rmq.MessageView) rmq.TransactionResolution {
		checked.put(view, 0)
		return rmq.COMMIT
	})
	if err != nil {
		return err
	}
	message := p.message("half")
	message.AddProperty("color", "red")
	receipts, err := producer.SendWithTransaction(context.Background(), message, producer.BeginTransaction())
	if err != nil {
		return err
	}
	got.waitFor(1, aWhile)
	if err := same("messages", []string{"half"}, got.bodies()); err != nil {
		return err
	}
	for _, each := range checked.all() {
		err := errors.Join(
			same("checked message", "half", each.body),
			same("checked id", receipts[0].MessageID, each.view.GetMessageId()),
			same("property of the checked message", "red", each.view.GetProperties()["color"]),
		)
		if err != nil {
			return err
		}
	}
	return same("was checked", true, len(checked.all()) > 0)
}

// -- failures ------------------------------------------------------------------------------------------

func caseRetry(p *place) error {
	got := &inbox{}
	_, err := p.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		got.put(view, 0)
		if view.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	if err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	message := p.message("retry")
	message.SetTag("tag")
	message.SetKeys("key")
	receipt, err := send(producer, message)
	if err != nil {
		return err
	}
	deliveries := got.waitFor(2, aWhile)
	if err := same("attempts", []int32{1, 2}, attempts(deliveries)); err != nil {
		return err
	}
	for _, each := range deliveries {
		err := errors.Join(
			same("id", receipt.MessageID, each.view.GetMessageId()),
			same("topic", p.topic, each.view.GetTopic()),
			same("tag", "tag", text(each.view.GetTag())),
			same("keys", []string{"key"}, each.view.GetKeys()),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func caseSlow(p *place) error {
	got := &inbox{}
	_, err := p.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		got.put(view, 0)
		// Longer than the server keeps a message for a consumer that does not live.
		time.Sleep(40 * time.Second)
		return rmq.SUCCESS
	})
	if err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	if _, err := send(producer, p.message("slow")); err != nil {
		return err
	}
	got.waitFor(1, 42*time.Second)
	return same("messages", []string{"slow"}, got.bodies())
}

func caseDLQ(p *place) error {
	got := &inbox{}
	_, err := p.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		got.put(view, 0)
		return rmq.FAILURE
	})
	if err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	message := p.message("poison")
	message.SetTag("tag")
	if _, err := send(producer, message); err != nil {
		return err
	}
	// The second failure asks for 5 s until the next attempt.
	return same("attempts", []int32{1, 2}, attempts(got.waitFor(2, 8*time.Second)))
}

func caseChangeInvisible(p *place) error {
	consumer, err := p.simple()
	if err != nil {
		return err
	}
	go func() {
		time.Sleep(time.Second)
		if producer, err := p.producer(); err == nil {
			_, _ = send(producer, p.message("change"))
		}
	}()
	first, err := receiveOne(consumer)
	if err != nil {
		return err
	}
	if err := consumer.ChangeInvisibleDuration(first, time.Second); err != nil {
		return err
	}
	second, err := receiveOne(consumer)
	if err != nil {
		return err
	}
	if err := same("attempt after the change", int32(2), second.GetDeliveryAttempt()); err != nil {
		return err
	}
	// The SDK does not say that this is refused; the message has to come once more nevertheless.
	if err := consumer.Ack(context.Background(), first); err != nil {
		return err
	}
	if err := consumer.ChangeInvisibleDuration(second, time.Second); err != nil {
		return err
	}
	third, err := receiveOne(consumer)
	if err != nil {
		return err
	}
	if err := same("attempt after the second change", int32(3), third.GetDeliveryAttempt()); err != nil {
		return err
	}
	if err := consumer.ChangeInvisibleDuration(third, 3*time.Second); err != nil {
		return err
	}
	// The change has put its new handle into the view.
	if err := consumer.Ack(context.Background(), third); err != nil {
		return err
	}
	late, err := receive(consumer, 1)
	if err != nil {
		return err
	}
	return errors.Join(
		same("id", []string{first.GetMessageId(), first.GetMessageId()}, []string{second.GetMessageId(), third.GetMessageId()}),
		same("number of messages after the ack", 0, len(late)),
	)
}

// -- many consumers --------------------------------------------------------------------------------

func caseWorkers(p *place) error {
	const count = 6
	got := &inbox{}
	for i := 0; i < count; i++ {
		_, err := p.filteredPush(rmq.SUB_ALL, 1, func(view *rmq.MessageView) rmq.ConsumerResult {
			got.put(view, i)
			return rmq.SUCCESS
		})
		if err != nil {
			return err
		}
	}
	// A push consumer asks for messages a second after its start, and then would find all of them.
	time.Sleep(3 * time.Second)
	producer, err := p.producer()
	if err != nil {
		return err
	}
	sent := bodies("work", 90)
	for _, body := range sent {
		if _, err := send(producer, p.message(body)); err != nil {
			return err
		}
	}
	deliveries := got.waitFor(len(sent), aWhile)
	who := map[int]bool{}
	for _, each := range deliveries {
		who[each.consumer] = true
	}
	return errors.Join(
		same("messages", sent, sorted(got.bodies())),
		same("number of consumers that got messages", count, len(who)),
	)
}

// Somebody restarts the server in the meantime.
func caseRestart(p *place) error {
	got := &inbox{}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	sent := bodies("restart", 100)
	for _, body := range sent {
		until := time.Now().Add(patience)
		for {
			_, err := send(producer, p.message(body))
			if err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
			if time.Now().After(until) {
				return fmt.Errorf("no send succeeds: %w", err)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	// A message whose ack or receipt was lost comes twice.
	found := func() []string {
		once, seen := []string{}, map[string]bool{}
		for _, body := range got.bodies() {
			if !seen[body] {
				once = append(once, body)
			}
			seen[body] = true
		}
		return sorted(once)
	}
	until := time.Now().Add(patience)
	for len(found()) < len(sent) && time.Now().Before(until) {
		time.Sleep(100 * time.Millisecond)
	}
	return same("messages", sent, found())
}

func caseClose(p *place) error {
	got := &inbox{}
	first, err := p.push(got.listen)
	if err != nil {
		return err
	}
	producer, err := p.producer()
	if err != nil {
		return err
	}
	if _, err := send(producer, p.message("one")); err != nil {
		return err
	}
	got.waitFor(1, 0)
	if err := first.GracefulStop(); err != nil {
		return err
	}
	if _, err := send(producer, p.message("two")); err != nil {
		return err
	}
	if _, err := p.push(got.listen); err != nil {
		return err
	}
	got.waitFor(2, aWhile)
	if err := same("messages", []string{"one", "two"}, got.bodies()); err != nil {
		return err
	}
	return producer.GracefulStop()
}
