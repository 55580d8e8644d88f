//go:build !unix

package tests

import "syscall"

// The tests start no server here, so nothing uses these.
const (
	standStill = syscall.SIGKILL
	goOn       = syscall.SIGKILL
)

func asNobody() *syscall.SysProcAttr { return nil }

func socketOption(uintptr, int) (int, error) { return 0, syscall.EINVAL }
