package sidecar

import (
	"bytes"
	"strings"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// Each program has its own name, also where it says in one line why it cannot start.
func TestCommands(t *testing.T) {
	for front, name := range map[Front]string{SOCKS5: "konnectivity-socks5-proxy", HTTP: "konnectivity-https-proxy"} {
		cmd := NewCommand(front)
		testutil.Holds(t, cmd.Name() == name && strings.Contains(cmd.Long, name) &&
			strings.Contains(cmd.Example, "curl --proxy"), "%s: %s", front, cmd.UsageString())
		var stderr bytes.Buffer
		status := cli.Run(cmd, []string{"--log-level=error", "stray"}, &stderr, nil)
		said := stderr.String()
		testutil.Holds(t, status == cli.ExitUsage && strings.HasPrefix(said, name+": ") && strings.Contains(said, "stray") &&
			strings.Count(said, "\n") == 1, "%s: status %d, said %q", name, status, said)
	}
}
