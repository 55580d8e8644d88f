//go:build linux

package main

import (
	"context"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncLock gives clients a lock on one Redis server. Its mutex expires after 8 s, as by default. A key that is taken is tried
// again after a millisecond, for as long as it takes, where the default is 50 to 250 ms and 32 times: that is in its favour.
func redsyncLock(address string, clients int) (lock func(ctx context.Context, key int64) error, closing func()) {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: clients, MinIdleConns: clients})
	rs := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context, key int64) error {
		mutex := rs.NewMutex("lock:"+strconv.FormatInt(key, 10), redsync.WithTries(1<<30), redsync.WithRetryDelay(time.Millisecond))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		_, err := mutex.UnlockContext(ctx)
		return err
	}, func() { client.Close() }
}
