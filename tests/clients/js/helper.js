// The unmodified kafkajs client, driven by tests: one JSON request per line on stdin, one JSON answer per line on
// stdout, so that one process serves a whole test session. Bytes travel as base64. Every request makes its own client
// and closes it.
'use strict'

const readline = require('readline')
const { Kafka, Partitioners, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const Batch = require('kafkajs/src/consumer/batch')
const socketFactory = require('kafkajs/src/network/socketFactory')
const { createLogger } = require('kafkajs/src/loggers')
const snappy = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

// kafkajs itself has gzip only; the others are plugged in the way its documentation describes. Packages that compile
// and download nothing when they are installed.
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})
const zstd = new Promise(resolve => ZstdCodec.run(module => resolve(new module.Streaming())))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd).decompress(buffer)),
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const ACKS = { 0: 0, 1: 1, all: -1 }
const READ_LIMIT_MS = 20000

const logCreator = () => ({ namespace, label, log }) => {
  process.stderr.write(`${label} ${namespace} ${log.message} ${log.error || ''}\n`)
}
const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const base64 = buffer => (buffer === null ? null : buffer.toString('base64'))
const client = request => new Kafka({ brokers: [request.kafka], logLevel: logLevel.WARN, logCreator })

async function using(resource, work) {
  await resource.connect()
  try {
    return await work(resource)
  } finally {
    await resource.disconnect()
  }
}

const createTopic = request =>
  using(client(request).admin(), async admin => {
    const created = await admin.createTopics({
      topics: [{ topic: request.topic, numPartitions: request.partitions, replicationFactor: 1 }],
    })
    if (!created) throw new Error('the topic was there already')
    return null
  })

const headersToObject = headers => {
  const object = {}
  for (const [name, value] of headers) {
    if (!(name in object)) object[name] = []
    object[name].push(bytes(value))
  }
  return object
}

const produce = request =>
  using(
    client(request).producer({
      idempotent: request.idempotent === true,
      allowAutoTopicCreation: false,
      createPartitioner: Partitioners.DefaultPartitioner,
    }),
    async producer => {
      await producer.send({
        topic: request.topic,
        acks: ACKS[request.acks || 'all'],
        compression: CODECS[request.codec],
        messages: request.records.map(record => ({
          partition: request.partition,
          key: bytes(record.key),
          value: bytes(record.value),
          headers: headersToObject(record.headers),
          ...(record.timestamp_ms === null ? {} : { timestamp: String(record.timestamp_ms) }),
        })),
      })
      return null
    }
  )

// kafkajs reads as a member of a consumer group and in no other way. Reading by assignment therefore uses the classes
// that its consumer is made of: the cluster finds the leader, the broker fetches, Batch decodes.
const clusterOf = request =>
  new Cluster({
    logger: createLogger({ level: logLevel.WARN, logCreator }),
    socketFactory: socketFactory(),
    brokers: [request.kafka],
    clientId: 'kafkajs',
    connectionTimeout: 5000,
    metadataMaxAge: 300000,
    allowAutoTopicCreation: false,
    enforceRequestTimeout: true,
    retry: {},
    isolationLevel: 0,
  })

async function offsetForTimestamp(request) {
  const offsets = await using(client(request).admin(), admin =>
    admin.fetchTopicOffsetsByTimestamp(request.topic, request.timestamp_ms)
  )
  return offsets.find(({ partition }) => partition === request.partition).offset
}

async function read(request) {
  let offset = request.timestamp_ms === null ? String(request.offset) : await offsetForTimestamp(request)
  return using(clusterOf(request), async cluster => {
    await cluster.addTargetTopic(request.topic)
    await cluster.refreshMetadataIfNecessary()
    const leaders = cluster.findLeaderForPartitions(request.topic, [request.partition])
    const broker = await cluster.findBroker({ nodeId: Object.keys(leaders)[0] })
    const messages = []
    const deadline = Date.now() + READ_LIMIT_MS
    while (messages.length < request.count) {
      if (Date.now() > deadline) {
        throw new Error(`read ${messages.length} of ${request.count} records in ${READ_LIMIT_MS} ms`)
      }
      const { responses } = await broker.fetch({
        replicaId: -1,
        isolationLevel: 0,
        maxWaitTime: 500,
        topics: [
          {
            topic: request.topic,
            partitions: [{ partition: request.partition, fetchOffset: offset, maxBytes: 1048576 }],
          },
        ],
      })
      const batch = new Batch(request.topic, offset, responses[0].partitions[0])
      messages.push(...batch.messages)
      if (!batch.isEmpty()) offset = String(BigInt(batch.lastOffset()) + 1n)
    }
    return messages.slice(0, request.count).map(messageToJson)
  })
}

const messageToJson = message => ({
  offset: Number(message.offset),
  timestamp_ms: message.timestamp, // a string: it may need more than 53 bits
  key: base64(message.key),
  value: base64(message.value),
  headers: Object.entries(message.headers).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map(value => [name, base64(value)])
  ),
})

const VERBS = { create_topic: createTopic, produce, read }

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      answer = { ok: await VERBS[request.verb](request) }
    } catch (error) {
      process.stderr.write(`${error.stack}\n`)
      answer = { error: String(error) }
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
}

main()
