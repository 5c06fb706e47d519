// Writes two messages with the published client and reads the stream back to its tail, in every way that it offers.
// Prints one line of JSON. Usage: node read.mjs URL [AUTHORIZATION]
import { DurableStream, stream } from "@durable-streams/client"

const [url, authorization] = process.argv.slice(2)
const headers = authorization ? { Authorization: authorization } : {}
const handle = new DurableStream({ url, headers, contentType: "application/json" })
await handle.append(JSON.stringify({ n: "node-1" }))
await handle.append(JSON.stringify({ n: "node-2" }))

const once = await stream({ url, headers, offset: "-1", live: false })
const messages = await once.json()

const bytes = await (await stream({ url, headers, offset: "-1", live: false })).body()

const followed = []
const live = await stream({ url, headers, offset: "-1", live: "long-poll", json: true })
await new Promise((resolve) => {
  live.subscribeJson(async (batch) => {
    followed.push(...batch.items)
    if (batch.upToDate) resolve()
  })
})
live.cancel()

console.log(JSON.stringify({
  messages: messages.length,
  last: messages.at(-1),
  bytes: bytes.length,
  offset: once.offset,
  upToDate: once.upToDate,
  followed: followed.length,
}))
process.exit(0)
