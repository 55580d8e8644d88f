package locks

import (
	"strings"
	"syscall"
)

const (
	tcpUserTimeout      = 18 // package syscall does not have it
	unacknowledgedLimit = 5000
)

func limitUnacknowledged(network, _ string, conn syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout,
			unacknowledgedLimit,
		)
	})
	if err != nil {
		return err
	}
	return failed
}
