//go:build unix

package tests

import "syscall"

// What lets a process stand still, and go on.
const (
	standStill = syscall.SIGSTOP
	goOn       = syscall.SIGCONT
)

// asNobody lets a program run as the user nobody.
func asNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func socketOption(fd uintptr, option int) (int, error) {
	return syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option)
}
