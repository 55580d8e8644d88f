package locks

import (
	"context"
	"net"
	"time"
)

// Dial opens a connection that soon fails when the other side is gone without a word, as after a
// power cut. Make it DialFunc of a pgx.ConnConfig. By the system's defaults a call that waits for
// its answer notices that after a quarter of an hour.
//
// Connecting takes at most 2 s. A silent peer is asked every second, after 2 s, and is taken for
// dead after three questions. On Linux that also happens when what was sent to it is not
// acknowledged for 5 s (TCP_USER_TIMEOUT).
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{
		Timeout: 2 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3,
		},
		Control: limitUnacknowledged,
	}
	return dialer.DialContext(ctx, network, address)
}
