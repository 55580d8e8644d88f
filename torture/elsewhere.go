//go:build !linux

package main

import "log"

func main() {
	log.Fatal("torture needs Linux: its faults are those of processes, networks and disks there")
}
