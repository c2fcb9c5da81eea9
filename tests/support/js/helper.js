// The unmodified kafkajs client, driven by tests: one JSON request per line on stdin, one JSON answer per line on
// stdout, so that one process serves a whole test session. Bytes travel as base64. Every request makes its own client
// and closes it.
'use strict'

const { randomUUID } = require('crypto')
const readline = require('readline')
const { Kafka, Partitioners, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
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
const READ_LIMIT_MS = 50000

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

async function offsetForTimestamp(request) {
  const offsets = await using(client(request).admin(), admin =>
    admin.fetchTopicOffsetsByTimestamp(request.topic, request.timestamp_ms)
  )
  return offsets.find(({ partition }) => partition === request.partition).offset
}

const consumerOf = (request, groupId) =>
  client(request).consumer({ groupId, maxWaitTimeInMs: 50, readUncommitted: true }) // closing waits for a fetch

// Consumes as the only member of the group until `work` is done, which begins before the first fetch: earlier kafkajs
// ignores a commit without a word. `eachMessage` is kafkajs's.
const asMember = (consumer, request, eachMessage, work) =>
  using(consumer, async () => {
    await consumer.subscribe({ topic: request.topic })
    await new Promise((resolve, reject) => {
      let began = false
      consumer.on(consumer.events.FETCH_START, () => {
        if (!began) work().then(resolve, reject)
        began = true
      })
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({ autoCommit: false, eachMessage }).catch(reject)
    })
  })

// kafkajs reads as a member of a group and in no other way: a group of its own for each read. The other partitions are
// read from their ends on, where nothing is.
async function read(request) {
  const offset = request.timestamp_ms === null ? String(request.offset) : await offsetForTimestamp(request)
  const consumer = consumerOf(request, `kafkajs reads ${randomUUID()}`)
  const messages = []
  let enough
  const eachMessage = async ({ partition, message }) => {
    if (partition !== request.partition || messages.length === request.count) return
    messages.push(message)
    if (messages.length === request.count) enough()
  }
  await asMember(consumer, request, eachMessage, async () => {
    consumer.seek({ topic: request.topic, partition: request.partition, offset })
    let late
    await new Promise((resolve, reject) => {
      enough = resolve
      late = setTimeout(
        () => reject(new Error(`read ${messages.length} of ${request.count} records in ${READ_LIMIT_MS} ms`)),
        READ_LIMIT_MS
      )
    })
    clearTimeout(late)
  })
  return messages.map(messageToJson)
}

async function commit(request) {
  const consumer = consumerOf(request, request.group)
  const offsets = request.offsets.map(([partition, offset, metadata]) => ({
    topic: request.topic,
    partition,
    offset: String(offset),
    metadata,
  }))
  await asMember(consumer, request, async () => {}, async () => consumer.commitOffsets(offsets))
  return null
}

const committed = request =>
  using(client(request).admin(), async admin => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: request.group, topics: [request.topic] })
    return partitions
      .filter(({ offset }) => offset !== '-1')
      .map(({ partition, offset, metadata }) => [partition, Number(offset), metadata || ''])
  })

const messageToJson = message => ({
  offset: Number(message.offset),
  timestamp_ms: message.timestamp, // a string: it may need more than 53 bits
  key: base64(message.key),
  value: base64(message.value),
  headers: Object.entries(message.headers).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map(value => [name, base64(value)])
  ),
})

// Transactional producers that stay open between requests, by the name that a test gives them.
const producers = {}

const transactions = {
  async open({ producer, bootstrap, transactional_id: transactionalId, timeout_ms: transactionTimeout }) {
    const made = client({ kafka: bootstrap }).producer({
      transactionalId,
      transactionTimeout,
      idempotent: true,
      maxInFlightRequests: 1,
      createPartitioner: Partitioners.DefaultPartitioner,
    })
    await made.connect()
    producers[producer] = { made, running: null }
  },
  async begin({ producer }) {
    producers[producer].running = await producers[producer].made.transaction()
  },
  send: ({ producer, topic, partition, value }) =>
    producers[producer].running.send({ topic, messages: [{ value, partition }] }),
  flush: async () => {}, // what is sent is awaited
  offsets: ({ producer, group, topic, partition, offset }) =>
    producers[producer].running.sendOffsets({
      consumerGroupId: group,
      topics: [{ topic, partitions: [{ partition, offset: String(offset) }] }],
    }),
  commit: ({ producer }) => producers[producer].running.commit(),
  abort: ({ producer }) => producers[producer].running.abort(),
  close: ({ producer }) => producers[producer].made.disconnect(),
}

const VERBS = { create_topic: createTopic, produce, read, commit, committed }
for (const [name, work] of Object.entries(transactions)) {
  VERBS[`transactions_${name}`] = async request => {
    await work(request)
    return null
  }
}

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
