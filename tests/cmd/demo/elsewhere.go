//go:build !unix

package main

import "log"

func main() {
	log.Fatal("the demo needs Linux, macOS or WSL: it lets processes stand still")
}
