module example.com/fleetbus-subscriber

go 1.22

require (
	github.com/nats-io/nats.go v1.37.0
	github.com/vmihailenco/msgpack/v5 v5.4.1
)
