package main

import "syscall"

func init() { withParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
