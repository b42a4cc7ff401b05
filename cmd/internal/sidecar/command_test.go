package sidecar

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// Each program has its own name, and says in one line why it cannot start: a
// flag's value, a port that is taken.
func TestCommands(t *testing.T) {
	busy := testutil.Listen(t)
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	for front, name := range map[Front]string{SOCKS5: "konnectivity-socks5-proxy", HTTP: "konnectivity-https-proxy"} {
		for arg, want := range map[string]struct {
			status int
			says   string
		}{
			"--serving-port=" + port: {cli.ExitFailure, "--serving-port: cannot listen on 127.0.0.1:" + port},
			"--konnectivity-port=0":  {cli.ExitUsage, "--konnectivity-port"},
			"stray":                  {cli.ExitUsage, "stray"},
		} {
			cmd := NewCommand(front)
			if cmd.Name() != name || !strings.Contains(cmd.Long, name) || !strings.Contains(cmd.Example, "curl --proxy") {
				t.Errorf("%s: %s", front, cmd.UsageString())
			}
			var stderr bytes.Buffer
			status := cli.Run(cmd, []string{"--log-level=error", arg}, &stderr, nil)
			said := stderr.String()
			if status != want.status || !strings.HasPrefix(said, name+": ") || !strings.Contains(said, want.says) || strings.Count(said, "\n") != 1 {
				t.Errorf("%s %s: status %d, said %q", name, arg, status, said)
			}
		}
	}
}
