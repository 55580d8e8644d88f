// Package locks is the Go side of distributed locks that live in PostgreSQL or YugabyteDB, in the
// schema "lock".
//
// The rules are SQL functions. Package db has one typed method for each of them. This package adds
// what needs a program around them: transactions that begin with a lock, retries, renewals,
// workers, and the migrations themselves.
//
// # Which kind to use
//
//   - One at a time while a transaction works: a key lock. [TryExclusive] waits for its turn, and
//     gives up after a while. [TryShared] lets readers in together. [Exclusive], [Shared] and
//     [ExclusiveAll], which takes several keys without deadlocks, wait until ctx ends. Give them
//     one that ends: who waits keeps a connection of the pool.
//   - One at a time for minutes or hours, a leader, or at most N at once: a lease. [WithLease]
//     renews it, and ends the work's context before another can have it.
//   - Not again until a person or a program says so, crash or not: a mutex, [NewDurableMutex].
//   - Not again before a while has passed: a timeout, [NewIntervalTimeout], which counts from the
//     last grant. A time slot, [NewTimeSlot], is aligned to the clock. A throttle, [NewThrottle],
//     never waits and says who and why.
//   - So much per second, for any name: a rate limit, [NewRateLimit]. It has a burst and a cost,
//     and says how long to wait. [RateLimit.Wait] does.
//   - Work to be shared out: tasks, [WorkTasks], each by itself and in any order. Requests,
//     [WorkRequests], are done in their order and by one worker per entity.
//
// # Whose transaction
//
// A key lock lasts as long as its transaction. So it belongs into the transaction that does the
// work. The closures hand theirs over, and db.New(tx) locks more in it. On a pool,
// db.New(pool).TryExclusive answers true and holds nothing, because the statement was the whole
// transaction.
//
// Every other grant is part of the transaction that asked for it: rolled back, it never was. What
// guards work outside the database has to be committed before that work begins. So ask on a pool,
// where each call is a transaction of its own. What is to happen together with other rows belongs
// into their transaction: enqueue a request, or create a task, with db.New(tx).
//
// A lease can be lost while its holder works. Whatever a holder writes begins with [Lease.Assert]
// in the same transaction.
//
// # Errors
//
// "Somebody else has it" is an answer, false, and no error. Only [WithLease] has none to give, and
// returns [ErrLeaseHeld]. What a closure returns comes back as it is. Other errors read "locks:
// verb kind id: cause", and errors.As reaches the *pgconn.PgError with its SQLSTATE:
//
//   - 40001 and 40P01, which [IsRetryable] tells, ask for the whole transaction again. The closures
//     do that by themselves, and so do calls on a pool. On a transaction its owner has to do it.
//   - 22004, 22023 and P0002 are mistakes of the caller. The error has a hint. 42501 is a role that
//     was not granted: call lock.grant_to for it.
//   - 55P03 and 57014 are timeouts that you set. 25006 is a standby, or a read-only transaction.
//   - "no connection of the pool" says that others use them all. No lock was asked for.
//   - An error without SQLSTATE is the connection's, and one of class 08 or 57P the server's end.
//     Then nobody can know whether a commit happened.
//
// The functions name the others.
package locks
