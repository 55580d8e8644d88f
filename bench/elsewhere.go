//go:build !linux

package main

import "log"

func main() {
	log.Fatal("bench needs Linux: it reads in /proc what each process used")
}
