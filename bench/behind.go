//go:build linux

package main

// behind says for each row why ours is behind a neighbour. It is shown where the figures say that it is.
var behind = map[string]string{
	"exclusive": "Behind the bare lock: it takes the same two round trips, with no closure around them. redsync, where\nit is ahead: its server only keeps a name, and ours begins and ends a transaction.",
	"fairness":  "Behind the bare lock: a call that has to wait enters a second function, which shows the name and\nbounds the wait.",
	"mixed":     "Behind the bare lock: a call that has to wait enters a second function, which shows the name and\nbounds the wait.",
	"network":   "Behind redsync: it takes as many round trips, but each of ours begins or ends a transaction.",
	"mutex": "Behind: the bare statements check nothing. A function that ordinary roles may call (security\n" +
		"definer, a pinned path) costs nearly as much as the look that finds a denial. A grant looks, and locks\nits row, so that a caller that loses holds nothing.",
	"throttle": "Behind: the bare statements check nothing. A function that ordinary roles may call (security\n" +
		"definer, a pinned path) costs nearly as much as the look that finds a denial. A grant looks, locks\nits row, and reads the clock behind every wait.",
	"rate_limit": "Behind the bare upsert: it limits nothing. A grant looks, and tests and updates its row in a\n" +
		"subtransaction, so that a caller that loses holds nothing. Behind Redis: its server changes a number in\nmemory, and ours commits a row.",
	"lease": "Behind: the bare statements check nothing, have no permits, and never say why a lease is lost.",
	"capture": "Behind plain SQL, and in batches pgmq: both forget a task that is done, or move it where no capture\n" +
		"finds it. Ours keeps it in place, with a name of its user's, an attempt that refuses late\nsettlements, and an index for those who capture done tasks again.",
	"work":         "Behind graphile-worker: it compares no attempt, deletes what is done, and a crash loses the completions of\na batch.",
	"network-task": "Behind plain SQL and pgmq for the same reasons as without a network.",
	"wal": "Behind those that delete what is done: ours keeps it, with an index for those who capture it again.\n" +
		"pgmq's archive keeps it, too.",
	"create": "Behind those that only insert: ours checks what is given, refuses a name that is taken, and looks whom to wake.",
	"start":  "Behind those whose worker runs one bare statement. Ours also looks whether the queue is paused, and\nwhat has timed out; after a sleep none of that is in the processor's caches.",
	"growth": "Behind plain SQL, which checks nothing. pgmq moves what is done to a table of its own.",
	"held":   "Behind in size: ours keeps what is done in the table, with its name and its times.",
	"steady": "Behind in size: ours keeps what is done in the table, with its name and its times.",
}
