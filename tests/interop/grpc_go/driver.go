// Scenarios of the official RocketMQ 5 client for Go.
//
// Usage: driver ENDPOINTS SCENARIO TOPIC GROUP [plain|tls] [ACCESS_KEY SECRET]. The last line is PASS, or FAIL with the
// reason; the exit code is 0 or 1.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const wait = 60 * time.Second

type driver struct {
	endpoints, topic, group string
	credentials             credentials.SessionCredentials
}

// --- Parts ---

func check(holds bool, format string, words ...any) {
	if !holds {
		panic(fmt.Sprintf(format, words...))
	}
}

func must(err error) {
	check(err == nil, "%v", err)
}

func (d *driver) config() *rmq.Config {
	return &rmq.Config{Endpoint: d.endpoints, ConsumerGroup: d.group, Credentials: &d.credentials}
}

func (d *driver) producer(options ...rmq.ProducerOption) rmq.Producer {
	producer, err := rmq.NewProducer(d.config(), append(options, rmq.WithTopics(d.topic))...)
	must(err)
	must(producer.Start())
	return producer
}

func (d *driver) consumer(filter *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(d.config(), rmq.WithSimpleAwaitDuration(10*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{d.topic: filter}))
	must(err)
	must(consumer.Start())
	return consumer
}

func (d *driver) push(consume func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	consumer, err := rmq.NewPushConsumer(d.config(), rmq.WithPushAwaitDuration(10*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{d.topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	must(err)
	must(consumer.Start())
	return consumer
}

func (d *driver) message(body string) *rmq.Message {
	return &rmq.Message{Topic: d.topic, Body: []byte(body)}
}

func send(producer rmq.Producer, message *rmq.Message) string {
	receipts, err := producer.Send(context.Background(), message)
	must(err)
	check(len(receipts) == 1, "%d receipts", len(receipts))
	return receipts[0].MessageID
}

// receive returns what one poll brings: a poll without messages is an error of this client.
func receive(consumer rmq.SimpleConsumer, count int32, invisible time.Duration) []*rmq.MessageView {
	found, err := consumer.Receive(context.Background(), count, invisible)
	check(err == nil || strings.Contains(err.Error(), "MESSAGE_NOT_FOUND"), "%v", err)
	return found
}

func take(consumer rmq.SimpleConsumer, count int) []*rmq.MessageView {
	var found []*rmq.MessageView
	for end := time.Now().Add(wait); len(found) < count; {
		check(time.Now().Before(end), "only %d of %d messages", len(found), count)
		for _, view := range receive(consumer, 16, 30*time.Second) {
			found = append(found, view)
			must(consumer.Ack(context.Background(), view))
		}
	}
	return found
}

func bodies(views []*rmq.MessageView) []string {
	var found []string
	for _, view := range views {
		found = append(found, string(view.GetBody()))
	}
	return found
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

func same(found []string, wanted []string, what string) {
	check(slices.Equal(found, wanted), "%s %v", what, found)
}

// seen is what a listener was given.
type seen struct {
	lock  sync.Mutex
	words []string
}

func (s *seen) add(word string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.words = append(s.words, word)
}

func (s *seen) until(count int) []string {
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		s.lock.Lock()
		words := slices.Clone(s.words)
		s.lock.Unlock()
		if len(words) >= count {
			return words
		}
		check(time.Now().Before(end), "saw %v", words)
	}
}

// --- Scenarios ---

func (d *driver) normal() {
	producer, consumer := d.producer(), d.consumer(rmq.SUB_ALL)
	var sent, wanted, ids []string
	for number := range 10 {
		message := d.message(fmt.Sprintf("body-%d", number))
		message.SetTag("created")
		message.SetKeys(fmt.Sprintf("k%d", number), "all")
		message.AddProperty("colour", "red")
		sent = append(sent, send(producer, message))
		wanted = append(wanted, string(message.Body))
	}
	found := take(consumer, 10)
	for _, view := range found {
		ids = append(ids, view.GetMessageId())
		check(*view.GetTag() == "created" && len(view.GetKeys()) == 2 && view.GetProperties()["colour"] == "red" &&
			view.GetDeliveryAttempt() == 1, "%v", view)
	}
	same(sorted(ids), sorted(sent), "ids")
	same(sorted(bodies(found)), wanted, "bodies")
	must(producer.GracefulStop())
	must(consumer.GracefulStop())
}

func (d *driver) fifo() {
	producer, consumer := d.producer(), d.consumer(rmq.SUB_ALL)
	for number := range 12 {
		message := d.message(fmt.Sprint(number))
		message.SetMessageGroup(fmt.Sprintf("group-%d", number%2))
		send(producer, message)
	}
	found := map[string][]string{}
	for _, view := range take(consumer, 12) {
		found[*view.GetMessageGroup()] = append(found[*view.GetMessageGroup()], string(view.GetBody()))
	}
	same(found["group-0"], []string{"0", "2", "4", "6", "8", "10"}, "order")
	same(found["group-1"], []string{"1", "3", "5", "7", "9", "11"}, "order")
}

func (d *driver) delay() {
	producer, consumer := d.producer(), d.consumer(rmq.SUB_ALL)
	due := time.Now().Add(3 * time.Second)
	message := d.message("later")
	message.SetDelayTimestamp(due)
	send(producer, message)
	take(consumer, 1)
	check(time.Now().After(due.Add(-time.Second)), "came %v early", time.Until(due))
}

func (d *driver) transaction() {
	var checked seen
	producer := d.producer(rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(view *rmq.MessageView) rmq.TransactionResolution {
			checked.add(string(view.GetBody()))
			if string(view.GetBody()) == "rolled back" {
				return rmq.ROLLBACK
			}
			return rmq.COMMIT
		},
	}))
	consumer := d.consumer(rmq.SUB_ALL)
	begin := func(body string) rmq.Transaction {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), d.message(body), transaction)
		must(err)
		return transaction
	}
	must(begin("committed").Commit())
	must(begin("rolled back").RollBack())
	begin("checked")
	var found []string // a broker may ask for what was just committed, too: it comes twice
	for len(found) < 2 {
		for _, body := range bodies(take(consumer, 1)) {
			if !slices.Contains(found, body) {
				found = append(found, body)
			}
		}
	}
	same(sorted(found), []string{"checked", "committed"}, "bodies")
	words := checked.until(1)
	check(slices.Contains(words, "checked"), "checked %v", words)
}

func (d *driver) pushConcurrently() {
	var found seen
	d.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		if string(view.GetBody()) == "body-3" && view.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		found.add(fmt.Sprintf("%s/%d", view.GetBody(), view.GetDeliveryAttempt()))
		return rmq.SUCCESS
	})
	producer := d.producer()
	var wanted []string
	for number := range 10 {
		send(producer, d.message(fmt.Sprintf("body-%d", number)))
		attempt := 1
		if number == 3 {
			attempt = 2
		}
		wanted = append(wanted, fmt.Sprintf("body-%d/%d", number, attempt))
	}
	same(sorted(found.until(10)), wanted, "saw")
}

func (d *driver) pushFifo() {
	var found seen
	d.push(func(view *rmq.MessageView) rmq.ConsumerResult {
		found.add(string(view.GetBody()))
		return rmq.SUCCESS
	})
	producer := d.producer()
	var wanted []string
	for number := range 10 {
		message := d.message(fmt.Sprint(number))
		message.SetMessageGroup("one")
		send(producer, message)
		wanted = append(wanted, string(message.Body))
	}
	same(found.until(10), wanted, "order")
}

func (d *driver) filter() {
	producer, consumer := d.producer(), d.consumer(rmq.NewFilterExpression("b || c"))
	for _, tag := range []string{"a", "b", "c", "d"} {
		message := d.message("tag " + tag)
		message.SetTag(tag)
		send(producer, message)
	}
	same(sorted(bodies(take(consumer, 2))), []string{"tag b", "tag c"}, "by tag")
	must(consumer.Unsubscribe(d.topic))
	must(consumer.Subscribe(d.topic, rmq.NewFilterExpressionWithType("size > 5", rmq.SQL92)))
	for _, size := range []string{"2", "7"} {
		message := d.message("size " + size)
		message.SetTag("b")
		message.AddProperty("size", size)
		send(producer, message)
	}
	same(bodies(take(consumer, 1)), []string{"size 7"}, "by SQL")
}

func (d *driver) invisible() {
	producer, consumer := d.producer(), d.consumer(rmq.SUB_ALL)
	send(producer, d.message("again"))
	var found []*rmq.MessageView
	for end := time.Now().Add(wait); len(found) == 0; {
		check(time.Now().Before(end), "no message")
		found = receive(consumer, 1, time.Minute)
	}
	must(consumer.ChangeInvisibleDuration(found[0], time.Second))
	second := take(consumer, 1)[0]
	check(second.GetMessageId() == found[0].GetMessageId(), "another message")
	check(second.GetDeliveryAttempt() == 2, "attempt %d", second.GetDeliveryAttempt())
}

func (d *driver) refused() {
	producer, err := rmq.NewProducer(d.config(), rmq.WithTopics(d.topic))
	if err == nil {
		err = producer.Start()
	}
	if err == nil {
		_, err = producer.Send(context.Background(), d.message("never"))
	}
	check(err != nil, "was let in")
	check(strings.Contains(err.Error(), "UNAUTHORIZED") || strings.Contains(err.Error(), "signature"), "%v", err)
}

func main() {
	words := os.Args[1:]
	rmq.EnableSsl = len(words) > 4 && words[4] == "tls"
	d := &driver{endpoints: words[0], topic: words[2], group: words[3]}
	if len(words) > 6 {
		d.credentials = credentials.SessionCredentials{AccessKey: words[5], AccessSecret: words[6]}
	}
	scenarios := map[string]func(){
		"normal": d.normal, "fifo": d.fifo, "delay": d.delay, "transaction": d.transaction,
		"push": d.pushConcurrently, "push-fifo": d.pushFifo, "filter": d.filter, "invisible": d.invisible,
		"refused": d.refused,
	}
	defer func() {
		if reason := recover(); reason != nil {
			fmt.Println("FAIL", reason)
			os.Exit(1)
		}
		fmt.Println("PASS")
	}()
	scenarios[words[1]]()
}
