// kafkajs: `node driver.js HOST:PORT,...`; the protocol is in ../serving.py.
//
// Its consumer needs a group, as in member.js. Here records are fetched by what lies below that consumer, its cluster and
// broker, with the same requests and decoding.
"use strict";

const readline = require("node:readline");
const zstd = require("@bokuweb/zstd-wasm");
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");
const Cluster = require("kafkajs/src/cluster");
const createSocketFactory = require("kafkajs/src/network/socketFactory");
const { createLogger } = require("kafkajs/src/loggers");
const LoggerConsole = require("kafkajs/src/loggers/console");
const lz4 = require("lz4js");
const snappy = require("snappyjs");

CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: async (encoder) => snappy.compress(encoder.buffer),
  // Java's framing: a magic, two versions, and blocks with their sizes; others write one block without these
  decompress: async (buffer) => {
    if (buffer.subarray(0, 8).toString("latin1") !== "\x82SNAPPY\0") return snappy.uncompress(buffer);
    const blocks = [];
    for (let at = 16; at < buffer.length; ) {
      const size = buffer.readInt32BE(at);
      blocks.push(snappy.uncompress(buffer.subarray(at + 4, at + 4 + size)));
      at += 4 + size;
    }
    return Buffer.concat(blocks);
  },
});
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
};

const brokers = process.argv[2].split(",");
const retry = { initialRetryTime: 50, maxRetryTime: 500, retries: 200 };
const options = { brokers, clientId: "kafkajs", logLevel: logLevel.NOTHING, retry };
const kafka = new Kafka(options);
const admin = kafka.admin();
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, retry });
const cluster = new Cluster({
  ...options, logger: createLogger({ level: logLevel.NOTHING, logCreator: LoggerConsole }), offsets: new Map(),
  socketFactory: createSocketFactory(), connectionTimeout: 1000, enforceRequestTimeout: true, requestTimeout: 30000,
  metadataMaxAge: 300000, allowAutoTopicCreation: false, maxInFlightRequests: null, isolationLevel: 1,
});

/** Asks the leader, with fresh metadata each time it has moved or is gone. */
async function fetchFromLeader(topic, partition, fetchOffset) {
  for (;;) {
    try {
      await cluster.addTargetTopic(topic);
      await cluster.refreshMetadata();
      const [leader] = Object.entries(cluster.findLeaderForPartitions(topic, [partition])).filter(([, p]) => p.length);
      const broker = await cluster.findBroker({ nodeId: leader[0] });
      const topics = [{ topic, partitions: [{ partition, fetchOffset: String(fetchOffset), maxBytes: 1 << 20 }] }];
      const { responses } = await broker.fetch({ maxWaitTime: 500, maxBytes: 1 << 20, topics, isolationLevel: 1 });
      return responses[0].partitions[0].messages;
    } catch (e) {
      if (!e.retriable && !["KafkaJSBrokerNotFound", "KafkaJSConnectionClosedError"].includes(e.name)) throw e;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

const actions = {
  async create({ topic, partitions, replicas }) {
    await admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: replicas }] });
  },
  async delete({ topic }) {
    await admin.deleteTopics({ topics: [topic] });
  },
  async topics() {
    return { topics: await admin.listTopics() };
  },
  async delete_records({ topic, partition, offset }) {
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] });
  },
  // A send of its own for each partition: where a broker has answered for one partition, and becomes leader of another
  // whose leader failed, kafkajs 2.2.4 does not send it the other's messages again, and says that all were sent.
  async produce({ topic, codec, records }) {
    for (const partition of new Set(records.map(([number]) => number))) {
      const messages = records.filter(([number]) => number === partition).map(([, value, timestamp]) => ({
        partition, value, timestamp: String(timestamp), key: "k", headers: { h: "1" },
      }));
      await producer.send({ topic, messages, acks: -1, compression: CODECS[codec] });
    }
  },
  async fetch({ topic, partition, offset, count }) {
    const records = [];
    while (records.length < count) {
      const next = offset + records.length;
      for (const m of await fetchFromLeader(topic, partition, next)) {
        if (Number(m.offset) < next || records.length === count) continue; // of a batch that begins before
        const header = m.headers.h === undefined ? null : m.headers.h.toString();
        records.push([Number(m.offset), m.value.toString(), Number(m.timestamp), m.key.toString(), header]);
      }
    }
    return { records };
  },
  async offset_at({ topic, partition, timestamp_ms }) {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp_ms);
    return { offset: Number(found.find((p) => p.partition === partition).offset) };
  },
  async bounds({ topic, partition }) {
    const { low, high } = (await admin.fetchTopicOffsets(topic)).find((p) => p.partition === partition);
    return { earliest: Number(low), latest: Number(high) };
  },
};

async function main() {
  await zstd.init();
  await Promise.all([admin.connect(), producer.connect(), cluster.connect()]);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    console.log(JSON.stringify((await actions[request.do](request)) ?? {}));
  }
  process.exit(0);
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
