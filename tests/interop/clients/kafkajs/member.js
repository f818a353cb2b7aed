// A member of a group: `node member.js HOST:PORT,... GROUP TOPIC range -`; what it prints is said in ../member.py.
// kafkajs has one assigner, its own, and no static members.
"use strict";

const { Kafka, logLevel } = require("kafkajs");

const [, , brokers, groupId, topic] = process.argv;
const retry = { initialRetryTime: 50, maxRetryTime: 500, retries: 5 };
const kafka = new Kafka({ brokers: brokers.split(","), clientId: "kafkajs", logLevel: logLevel.ERROR, retry,
  logCreator: () => ({ log }) => console.error(log.message, log.error || "") });
const consumer = kafka.consumer({ groupId, sessionTimeout: Number(process.env.SESSION_MS), heartbeatInterval: 300,
  rebalanceTimeout: 10000, metadataMaxAge: 1000, maxWaitTimeInMs: 100, retry: { ...retry, restartOnFailure: async () => true } });

const admin = kafka.admin();
const ASK_EVERY_MS = 200;

const say = (what) => console.log(JSON.stringify(what));
let owned = [];
// records whose commit failed
let unsure = [];

function own(partitions) {
  const now = [...partitions].sort((a, b) => a - b);
  if (JSON.stringify(now) !== JSON.stringify(owned)) say({ owned: (owned = now) });
}

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => own(payload.memberAssignment[topic] || []));
consumer.on(consumer.events.REBALANCING, () => own([]));

const sayRead = (messages) => say({ read: messages.map((message) => Number(message.value)) });

async function sayWhatIsCommitted() {
  try {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
    const ends = new Map(partitions.map(({ partition, offset }) => [partition, Number(offset)]));
    const isCommitted = ({ partition, offset }) => Number(offset) < (ends.get(partition) || 0);
    const committed = unsure.filter(isCommitted);
    unsure = unsure.filter((record) => !isCommitted(record));
    if (committed.length) sayRead(committed);
  } catch (error) {
    console.error(error);
  }
}

async function askForUnsure() {
  if (unsure.length) await sayWhatIsCommitted();
  setTimeout(askForUnsure, ASK_EVERY_MS);
}

async function main() {
  await admin.connect();
  askForUnsure();
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, heartbeat }) => {
      const offset = String(Number(batch.lastOffset()) + 1);
      try {
        await consumer.commitOffsets([{ topic, partition: batch.partition, offset }]);
        sayRead(batch.messages);
      } catch (error) { // thrown here it would end the consumer for good
        console.error(error);
        unsure.push(...batch.messages.map((message) => ({ ...message, partition: batch.partition })));
      }
      await heartbeat();
    },
  });
  process.stdin.resume();
  process.stdin.on("end", async () => {
    await consumer.disconnect();
    process.exit(0);
  });
}

main();
