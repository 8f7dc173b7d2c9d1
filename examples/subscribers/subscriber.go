// Prints one line for each change in the fleet; knows NATS and msgpack, nothing of fleetbus.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

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
	consumer, err := stream.OrderedConsumer(ctx, "FLEETBUS_EVENTS",
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return err
	}
	newest := map[string]order{} // keep it as long as you may be asked about the object
	consuming, err := consumer.Consume(func(message jetstream.Msg) { handle(message, newest) })
	if err != nil {
		return err
	}
	defer consuming.Stop()
	<-ctx.Done()
	return nil
}

// login reads its files at each attempt to connect, as somebody may rotate them.
func login() ([]nats.Option, error) {
	file := func(name string) string { return os.Getenv("FLEETBUS_NATS_" + name + "_FILE") }
	// Without the second the client closes for good when a login is refused twice.
	options := []nats.Option{nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()}
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

func handle(message jetstream.Msg, newest map[string]order) {
	if message.Headers().Get("fleetbus-format") != "1" {
		log.Println("skipped", message.Subject())
		return
	}
	var event Event
	if err := msgpack.Unmarshal(message.Data(), &event); err != nil {
		log.Println("unreadable", message.Subject(), err)
		return
	}
	// Rights are given by subject: who writes about another cluster has none for it.
	if event.Cluster != strings.Split(message.Subject(), ".")[2] {
		log.Println("skipped", message.Subject())
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
