// A process whose kafkajs members consume in groups: the commands and events of tests/support/group_member.py, which
// says what they mean. `process.hrtime` is CLOCK_MONOTONIC, and a pipe is written to at once.
'use strict'

const readline = require('readline')
const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const logCreator = () => ({ namespace, label, log }) => {
  process.stderr.write(`${label} ${namespace} ${log.message} ${log.error || ''}\n`)
}

// kafkajs calls its one assignor by a name of its own. Under a name that other clients know, it can be in a group with
// them: what the members say and are told has the same form everywhere.
const assignerNamed = name => ({ cluster }) => ({ ...PartitionAssigners.roundRobin({ cluster }), name })

function report(member, event, facts = {}) {
  process.stdout.write(
    `${JSON.stringify({ event, member: member.name, at: Number(process.hrtime.bigint()), ...facts })}\n`
  )
}

const pairs = assignment =>
  Object.entries(assignment).flatMap(([topic, partitions]) => partitions.map(partition => [topic, partition]))

function reportAssigned(member, assignment) {
  if (member.leaving) return // it may join again while it leaves, and gets no records then
  reportGone(member, 'lost') // kafkajs has no event for a member that was removed
  member.owned = pairs(assignment)
  report(member, 'assigned', { partitions: member.owned, generation: null })
}

function reportGone(member, event) {
  if (member.owned.length > 0) report(member, event, { partitions: member.owned })
  member.owned = []
}

async function join(member, command) {
  const kafka = new Kafka({
    brokers: [command.kafka],
    logLevel: logLevel.WARN,
    logCreator,
    retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 20 },
  })
  const consumer = kafka.consumer({
    groupId: command.group,
    sessionTimeout: command.session_timeout_ms,
    heartbeatInterval: command.heartbeat_ms,
    metadataMaxAge: command.metadata_max_age_ms,
    partitionAssigners: command.assignors.map(assignerNamed),
    maxWaitTimeInMs: 100,
  })
  member.consumer = consumer
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => reportAssigned(member, payload.memberAssignment))
  consumer.on(consumer.events.REBALANCING, () => reportGone(member, 'revoked'))
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    reportGone(member, 'lost')
    if (!payload.restart) report(member, 'failed', { name: payload.error.name, error: String(payload.error) })
  })
  if (command.commit === 'auto') {
    consumer.on(consumer.events.COMMIT_OFFSETS, ({ payload }) =>
      report(member, 'committed', {
        offsets: payload.topics.flatMap(({ topic, partitions }) =>
          partitions.map(({ partition, offset }) => [topic, partition, Number(offset)])
        ),
      })
    )
  }
  await consumer.connect()
  const topics = command.pattern === null ? command.topics : [new RegExp(command.pattern)]
  await consumer.subscribe({ topics, fromBeginning: true })
  await consumer.run({
    autoCommit: command.commit === 'auto',
    eachBatchAutoResolve: false,
    eachBatch: payload => work(member, command, payload),
  })
}

async function work(member, command, { batch, resolveOffset, commitOffsetsIfNecessary, isRunning, isStale }) {
  if (!isRunning() || isStale()) return
  const { topic, partition } = batch
  // When the broker ends while kafkajs joins again, it goes on fetching what it was assigned before, until a heartbeat
  // tells it that the group rebalances.
  if (!member.owned.some(([name, number]) => name === topic && number === partition)) return
  const end = Number(batch.lastOffset()) + 1
  const processed = () =>
    report(member, 'processed', { offsets: [[topic, partition, batch.messages.map(({ offset }) => Number(offset))]] })
  const commit = async () => {
    try {
      await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset: String(end) }] }] })
    } catch (error) {
      report(member, 'commit_failed', { error: String(error) })
      throw error
    }
    report(member, 'committed', { offsets: [[topic, partition, end]] })
  }
  if (command.commit === 'before') {
    await commit()
    await new Promise(() => {}) // until the process is killed
  }
  processed()
  resolveOffset(batch.lastOffset())
  if (command.commit !== 'auto') await commit()
}

// Only a running consumer can be stopped: a disconnect while kafkajs still starts would leave it running.
async function leave(member) {
  await member.running
  member.leaving = true
  report(member, 'leaving')
  await member.consumer.disconnect()
  report(member, 'left')
}

function seek(member, { topic, partition, to }) {
  member.consumer.seek({ topic, partition, offset: String(to) })
  report(member, 'sought')
}

const members = new Map()

async function obey(command) {
  if (command.verb === 'join') members.set(command.member, { name: command.member, owned: [] })
  const member = members.get(command.member)
  try {
    if (command.verb === 'join') await (member.running = join(member, command))
    else if (command.verb === 'leave') await leave(member)
    else seek(member, command)
  } catch (error) {
    process.stderr.write(`${error.stack}\n`)
    report({ name: command.member }, 'failed', { name: error.name, error: String(error) })
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) obey(JSON.parse(line))
  process.exit()
}

main()
