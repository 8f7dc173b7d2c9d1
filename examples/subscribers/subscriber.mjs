// Prints one line for each change in the fleet; knows NATS and msgpack, nothing of fleetbus.
import { readFileSync } from "node:fs";
import {
  connect,
  credsAuthenticator,
  nkeyAuthenticator,
  usernamePasswordAuthenticator,
} from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";
import { decode } from "@msgpack/msgpack";

const filter = process.argv[2] ?? "fleetbus.events.>";
const urls = process.env.FLEETBUS_NATS_URL ?? process.env.NATS_URL ?? "127.0.0.1:4222";
const file = (name) => process.env[`FLEETBUS_NATS_${name}_FILE`];

// The functions read their file at each attempt to connect, as somebody may rotate it.
function authenticator() {
  if (file("CREDS")) return credsAuthenticator(() => readFileSync(file("CREDS")));
  if (file("NKEY")) return nkeyAuthenticator(() => readFileSync(file("NKEY")));
  if (!file("PASSWORD")) return undefined;
  const password = () => readFileSync(file("PASSWORD"), "utf8").replace(/[\r\n]+$/, "");
  return usernamePasswordAuthenticator(process.env.FLEETBUS_NATS_USERNAME, password);
}

// A durable consumer that the operator has made for us; else we need the right to make one.
const durable = process.env.SUBSCRIBER_DURABLE;
const inbox = process.env.SUBSCRIBER_INBOX_PREFIX ?? `_INBOX.subscriber.${durable}`;
const tls = { caFile: file("CA"), certFile: file("CERT"), keyFile: file("KEY") };
const connection = await connect({
  servers: urls.split(","),
  authenticator: authenticator(),
  tls: tls.caFile || tls.certFile ? tls : undefined,
  inboxPrefix: durable ? inbox : undefined,
  maxReconnectAttempts: -1,
  ignoreAuthErrorAbort: true, // else it closes for good when a login is refused twice
});
const { consumers } = jetstream(connection);
// The server answers no question about the stream to an account that only imports it, and get()
// asks one.
const consumer = durable
  ? consumers.getConsumerFromInfo({
      stream_name: "FLEETBUS_EVENTS",
      name: durable,
      config: { durable_name: durable },
    })
  : await consumers.get("FLEETBUS_EVENTS", { filter_subjects: filter });

// Greater is newer, deletions included. A resourceVersion has up to 128 bits: never a Number.
function isNewer(event, known) {
  if (known === undefined) return true;
  if (event.incarnation.number !== known.incarnation.number) {
    return event.incarnation.number > known.incarnation.number;
  }
  return BigInt(event.resourceVersion) > BigInt(known.resourceVersion);
}

const newest = new Map(); // keep it as long as you may be asked about the object

function handle(message) {
  if (message.headers?.get("fleetbus-format") !== "1") {
    console.error("skipped", message.subject);
    return;
  }
  const event = decode(message.data);
  if (event.type !== "event.v1") return;
  if (event.cluster !== message.subject.split(".")[2]) {
    // Rights are given by subject: whoever wrote this has none for that cluster.
    console.error("skipped", message.subject);
    return;
  }
  const place = [event.cluster, event.group, event.resource, event.namespace, event.name];
  const key = JSON.stringify(place);
  if (!isNewer(event, newest.get(key))) return; // a repeat, or a late arrival
  newest.set(key, { incarnation: event.incarnation, resourceVersion: event.resourceVersion });
  console.log([event.verb, ...place, event.resourceVersion].join(" "));
}

async function* messages() {
  if (!durable) yield* await consumer.consume();
  while (durable) {
    try {
      yield* await consumer.fetch({ max_messages: 100, expires: 5000 });
    } catch (error) {
      console.error("waiting for NATS:", error.message);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

for await (const message of messages()) {
  handle(message);
  if (durable) message.ack(); // after the work: what is not acknowledged comes again
}
