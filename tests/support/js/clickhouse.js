// ClickHouse's unmodified client for Node.js, driven by tests: one JSON request per line on stdin, one JSON answer per
// line on stdout. Every request makes its own client with `options` and closes it.
'use strict'

const readline = require('readline')
const { Readable } = require('stream')
const { createClient, ClickHouseLogLevel } = require('@clickhouse/client')

const rowsOf = async (client, { sql, format = 'JSONEachRow', ...parameters }) =>
  (await client.query({ query: sql, format, ...parameters })).json()

const VERBS = {
  ping: (client, { select }) => client.ping({ select }),
  query: rowsOf,

  // Counts the rows of a result as they come.
  stream: async (client, { sql }) => {
    const result = await client.query({ query: sql, format: 'JSONEachRow' })
    let count = 0
    for await (const rows of result.stream()) count += rows.length
    return count
  },

  insert: async (client, { table, values, streamed }) => {
    const rows = streamed ? Readable.from(values) : values
    return (await client.insert({ table, values: rows, format: 'JSONEachRow' })).executed
  },

  // Runs `sql`, then `then` in the same session.
  session: async (client, { sql, then }) => {
    await client.command({ query: sql })
    return rowsOf(client, { sql: then })
  },

  // Aborts a query when `until`, asked by the same client, has rows.
  abort: async (client, { sql, until }) => {
    const abort = new AbortController()
    const aborted = rowsOf(client, { sql, abort_signal: abort.signal })
    while ((await rowsOf(client, { sql: until })).length === 0);
    abort.abort()
    return aborted
  },
}

async function answer(request) {
  const { verb, url, options, ...parameters } = request
  const client = createClient({ url, log: { level: ClickHouseLogLevel.OFF }, ...options })
  try {
    return { ok: await VERBS[verb](client, parameters) }
  } catch (error) {
    return { error: `${error.code} ${error.type}: ${error.message}` }
  } finally {
    await client.close()
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
  }
}

main()
