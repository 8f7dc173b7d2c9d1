// Prints one line for each change in the fleet; knows NATS and msgpack, nothing of fleetbus.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/vmihailenco/msgpack/v5"
)

// Event holds the fields of event.v1 that this program needs; unknown fields are ignored.
type Event struct {
	Type            string      `msgpack:"type"`
	Cluster         string      `msgpack:"cluster"`
	Incarnation     Incarnation `msgpack:"incarnation"`
	Group           string      `msgpack:"group"`
	Resource        string      `msgpack:"resource"`
	Namespace       string      `msgpack:"namespace"`
	Name            string      `msgpack:"name"`
	ResourceVersion string      `msgpack:"resourceVersion"`
	Verb            string      `msgpack:"verb"`
	Object          []byte      `msgpack:"object"` // JSON
}

// Incarnation is one history of a cluster; a greater number replaces a smaller one.
type Incarnation struct {
	Number int64  `msgpack:"number"`
	UID    string `msgpack:"uid"`
}

type order struct {
	incarnation int64
	version     string
}

// newerThan compares as the contract says: a resourceVersion is a number of up to 128 bits.
func (o order) newerThan(known order) bool {
	if o.incarnation != known.incarnation {
		return o.incarnation > known.incarnation
	}
	if len(o.version) != len(known.version) {
		return len(o.version) > len(known.version)
	}
	return o.version > known.version
}

func main() {
	url, filter := nats.DefaultURL, "fleetbus.events.>"
	for _, name := range []string{"NATS_URL", "FLEETBUS_NATS_URL"} {
		if given := os.Getenv(name); given != "" {
			url = given
		}
	}
	if len(os.Args) > 1 {
		filter = os.Args[1]
	}
	if err := run(url, filter); err != nil {
		log.Fatal(err)
	}
}

func run(url, filter string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	options, err := login()
	if err != nil {
		return err
	}
	connection, err := nats.Connect(url, options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	stream, err := jetstream.New(connection)
	if err != nil {
		return err
	}
	if durable() != "" {
		return readDurable(ctx, connection)
	}
	consumer, err := stream.OrderedConsumer(ctx, "FLEETBUS_EVENTS",
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return err
	}
	newest := map[string]order{} // keep it as long as you may be asked about the object
	consuming, err := consumer.Consume(func(message jetstream.Msg) {
		handle(message.Subject(), message.Headers(), message.Data(), newest)
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	<-ctx.Done()
	return nil
}

// durable names a consumer that the operator has made for this program.
func durable() string { return os.Getenv("SUBSCRIBER_DURABLE") }

// readDurable asks for messages and nothing else: the server answers no question about the stream
// to an account that only imports it, and jetstream.Consumer asks one.
func readDurable(ctx context.Context, connection *nats.Conn) error {
	stream, err := connection.JetStream()
	if err != nil {
		return err
	}
	bound, err := stream.PullSubscribe("", durable(),
		nats.Bind("FLEETBUS_EVENTS", durable()), nats.SkipConsumerLookup())
	if err != nil {
		return err
	}
	newest := map[string]order{} // keep it as long as you may be asked about the object
	for ctx.Err() == nil {
		messages, err := bound.Fetch(100, nats.MaxWait(5*time.Second))
		if err != nil && !errors.Is(err, nats.ErrTimeout) {
			log.Println("waiting for NATS:", err)
			time.Sleep(time.Second)
		}
		for _, message := range messages {
			handle(message.Subject, message.Header, message.Data, newest)
			// After the work: what is not acknowledged comes again.
			if err := message.Ack(); err != nil {
				log.Println("not acknowledged:", err)
			}
		}
	}
	return nil
}

// login reads its files at each attempt to connect, as somebody may rotate them.
func login() ([]nats.Option, error) {
	file := func(name string) string { return os.Getenv("FLEETBUS_NATS_" + name + "_FILE") }
	// Without the second the client closes for good when a login is refused twice.
	options := []nats.Option{nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()}
	if durable() != "" {
		inbox := os.Getenv("SUBSCRIBER_INBOX_PREFIX")
		if inbox == "" {
			inbox = "_INBOX.subscriber." + durable()
		}
		options = append(options, nats.CustomInboxPrefix(inbox))
	}
	if path := file("CREDS"); path != "" {
		options = append(options, nats.UserCredentials(path))
	}
	if path := file("NKEY"); path != "" {
		option, err := nats.NkeyOptionFromSeed(path)
		if err != nil {
			return nil, err
		}
		options = append(options, option)
	}
	if path := file("PASSWORD"); path != "" {
		options = append(options, nats.UserInfoHandler(func() (string, string) {
			content, err := os.ReadFile(path)
			if err != nil {
				log.Println("password not readable:", err)
			}
			return os.Getenv("FLEETBUS_NATS_USERNAME"), strings.TrimRight(string(content), "\r\n")
		}))
	}
	if path := file("CA"); path != "" {
		options = append(options, nats.RootCAs(path))
	}
	if path := file("CERT"); path != "" {
		options = append(options, nats.ClientCert(path, file("KEY")))
	}
	return options, nil
}

func handle(subject string, header nats.Header, data []byte, newest map[string]order) {
	if header.Get("fleetbus-format") != "1" {
		log.Println("skipped", subject)
		return
	}
	var event Event
	if err := msgpack.Unmarshal(data, &event); err != nil {
		log.Println("unreadable", subject, err)
		return
	}
	// Rights are given by subject: who writes about another cluster has none for it.
	if event.Cluster != strings.Split(subject, ".")[2] {
		log.Println("skipped", subject)
		return
	}
	if event.Type != "event.v1" {
		return
	}
	place := strings.Join([]string{
		event.Cluster, event.Group, event.Resource, event.Namespace, event.Name}, " ")
	found := order{event.Incarnation.Number, event.ResourceVersion}
	if known, ok := newest[place]; ok && !found.newerThan(known) {
		return // a repeat, or a late arrival
	}
	newest[place] = found
	fmt.Println(event.Verb, place, event.ResourceVersion)
}
