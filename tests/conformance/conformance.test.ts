// Runs the published suite against the server at CONFORMANCE_TEST_URL. Nothing of ours is tested here beside it.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_TEST_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_TEST_URL is not set: give the URL of a running server, say http://127.0.0.1:8484")
}

runConformanceTests({
  baseUrl,
  subscriptions: true,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS ?? 20_000),
})
