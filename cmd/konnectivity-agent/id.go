package main

import (
	"crypto/sha256"
	"os"
	"strings"

	"github.com/google/uuid"
)

// defaultID is the agent's id where nothing sets one. On Linux, a process that is started anew in
// the place of one that was killed has the same: connections that went through the latter are known
// to be gone once its id is back, and would otherwise wait for it for the resume window. Two
// agents have two, since they have another host, boot, network namespace or command line: in one
// namespace they cannot have the same ports. Elsewhere, each process has its own.
func defaultID(args []string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return uuid.NewString()
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return uuid.NewString()
	}
	host, _ := os.Hostname()
	place := append([]string{string(boot), network, host}, args...)
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte(strings.Join(place, "\x00")), 8).String()
}
