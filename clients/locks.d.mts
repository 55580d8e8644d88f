// Durations are in milliseconds.
import type { ClientBase, ClientConfig, Pool, QueryResult } from 'pg'

export class Permanent extends Error {}
export class Snooze extends Error {
  constructor (delay: number)
  readonly delay: number
}
export class TaskLost extends Error {}
export class TimedOut extends Error {}
export class Unsettled extends Error {}
export class LeaseLost extends Error {}
export class Held extends Error {}

export interface Task<Payload = unknown> {
  readonly id: string
  readonly attempt: string
  readonly tries: number
  readonly retriesLeft: number | null
  readonly message: string | null
  readonly payload: Payload
  readonly queue: string
}

export type Outcome = 'done' | 'retry' | 'dead' | 'snoozed' | 'returned' | 'stale' | 'unknown'

export interface Result<Payload = unknown> {
  task: Task<Payload>
  outcome: Outcome
  error?: unknown
  retryAt?: Date
}

export interface WorkOptions<Payload = unknown> {
  /** Default: 'default'. */
  queue?: string
  /** Handlers at once. Default: 10. */
  concurrency?: number
  /** What to capture, the preferred first. Default: new and failed. */
  statuses?: Array<'new' | 'done' | 'failed'>
  /** Of a task without a limit of its own. Default: 25; null: no limit. */
  maxTries?: number | null
  /** Between two tries. Default: 1000. */
  shortestPause?: number
  /** Between two tries. Default: an hour. */
  longestPause?: number
  /** Tasks get their timeout anew while the handler runs. Default: true. */
  extend?: boolean
  /** From the stop on; handlers are told after nine tenths of it. Default: 10,000. */
  grace?: number
  /** Of a call of the server. Default: 10,000. */
  callTimeout?: number
  /** Between two looks where notifications arrive. Default: 30,000. */
  poll?: number
  /** Between two looks where they do not. Default: 1000. */
  blind?: number
  /** Where to listen, beside a pooler; false: nowhere. Default: the connection. */
  listen?: string | ClientConfig | false
  /** For people to read. Default: the host and the process. */
  owner?: string
  /** Stops the worker. */
  stop?: AbortSignal
  /** Of the process, which stop the worker. Default: SIGTERM and SIGINT. */
  signals?: NodeJS.Signals[]
  /** Told once of each task, when it is settled. Default: errors go to console.error. */
  onSettled?: (result: Result<Payload>) => unknown
  /** Told of the worker's own trouble. Default: console.error. */
  onTrouble?: (error: unknown) => unknown
}

export function work<Payload = any> (
  connection: string | ClientConfig,
  handler: (task: Task<Payload>, signal: AbortSignal) => unknown,
  options?: WorkOptions<Payload>
): Promise<void>

/** A number locks the key of that number, a text that of this name. */
export type Key = string | number | bigint

export function transaction<T> (pool: Pool, fn: (client: ClientBase) => Promise<T>): Promise<T>
export function exclusive<T> (
  pool: Pool, key: Key, fn: (client: ClientBase) => Promise<T>, options?: { wait?: number }
): Promise<T>
export function shared<T> (
  pool: Pool, key: Key, fn: (client: ClientBase) => Promise<T>, options?: { wait?: number }
): Promise<T>

export interface Lease {
  readonly name: string
  readonly token: string
  readonly signal: AbortSignal
  /** Fences the transaction that client is in: it fails with LK001 when the lease is lost. */
  assert (client: ClientBase): Promise<QueryResult>
}

export function withLease<T> (
  connection: string | ClientConfig, name: string, ttl: number,
  fn: (lease: Lease) => Promise<T>,
  options?: {
    wait?: number, permits?: number, owner?: string, callTimeout?: number,
    onTrouble?: (error: unknown) => unknown
  }
): Promise<T>
