package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Beside a thousand connections status of server, agent and sidecar answers
// soon and fits a screen; its JSON is no larger than what was asked for.
func TestStatusBesideManyConnections(t *testing.T) {
	s := newSuite(t)
	w := &whole{Suite: s, server: must(s.StartServer())(t)}
	w.agent = must(s.StartAgent(w.server))(t)
	side := suite.Loopback(testutil.Reserved(t))
	w.socks = must(s.StartSOCKS5(w.server, "--admin-address="+side))(t)
	target := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	const many = 1000
	end := hold(t, viaSOCKS5(w.socks.Address()), many, target, func(tunnel.Conn) {})
	defer end()
	for name, at := range map[string]string{"server": suite.Loopback(w.server.AdminPort), "agent": agentAt(w.agent), "sidecar": side} {
		eventually(t, patience, name+" shows all", func() (bool, any) {
			status, screen := operator(t, s, "status", at)
			return status == 0 && tells(screen, fmt.Sprint(many, " connections")), screen
		})
		spent := stopwatch(s)
		out, err := command(t, nil, s.Bin.Path("konnectivity"), "status", at, "-o", "json", "--limit=50")
		took := spent()
		var reports []struct {
			Status      struct{ ID string }
			Connections []json.RawMessage
		}
		if bad := json.Unmarshal([]byte(out), &reports); err != nil || bad != nil || len(reports) != 1 || len(reports[0].Connections) != 50 || reports[0].Status.ID == "" || len(out) > 128<<10 {
			t.Errorf("%s: %v, %v, %d bytes: %.300s", name, err, bad, len(out), out)
		}
		if took > 10*time.Second { // tens of milliseconds on an idle machine
			t.Errorf("%s: it took %v", name, took)
		}
		t.Logf("%s: %d bytes after %v", name, len(out), took.Round(time.Millisecond))
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// --watch in a real terminal stays within it, frame by frame.
func TestStatusWatchInATerminal(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	// script (bsdutils, which every Debian has) makes the terminal; its size is
	// set from inside.
	line := fmt.Sprintf("stty rows 20 cols 80; %s status --watch --interval=300ms %s %s", w.Bin.Path("konnectivity"),
		suite.Loopback(w.server.AdminPort), agentAt(w.agent))
	p := must(suite.Start("script", programPath(t, "script"), []string{"-qec", line, "/dev/null"}, []string{"TERM=xterm"}))(t)
	t.Cleanup(p.Kill) // which hangs the terminal up
	var frames []string
	eventually(t, patience, "frames", func() (bool, any) {
		out := p.Output()
		frames = strings.Split(out, "\x1b[H")
		return len(frames) > 8, out
	})
	if frames = frames[1:]; !strings.Contains(frames[1], "\x1b[1m") {
		t.Fatalf("no colour:\n%q", frames)
	}
	for _, frame := range frames[:len(frames)-1] { // the last one may be cut short
		rows := strings.Split(strings.ReplaceAll(escapes.ReplaceAllString(frame, ""), "\r", ""), "\n")
		if len(rows) > 20 || !strings.Contains(frame, "konnectivity-server") {
			t.Errorf("%d rows:\n%s", len(rows), frame)
		}
		for _, row := range rows {
			if n := utf8.RuneCountInString(row); n > 80 {
				t.Errorf("a row of %d columns: %q", n, row)
			}
		}
	}
}

// Over the old protocol, too, the peers have rates.
func TestStatusOfOldAgentsHasRates(t *testing.T) {
	s := newSuite(t)
	w := &whole{Suite: s, server: must(s.StartServer())(t)}
	w.agent = must(s.StartAgent(w.server, "--link=off"))(t)
	sends := listen(t, func(c *net.TCPConn) {
		for block := make([]byte, 4<<10); ; time.Sleep(2 * time.Millisecond) { // at a pace that any reader keeps
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	end := hold(t, viaConnect("unix", w.server.UDS, nil), 1, sends, func(c tunnel.Conn) { _, _ = io.Copy(io.Discard, c) })
	defer end()
	for role, at := range map[string]string{"agent": suite.Loopback(w.server.AdminPort), "server": agentAt(w.agent)} {
		eventually(t, patience, "the rate of the "+role, func() (bool, any) {
			out, err := command(t, nil, s.Bin.Path("konnectivity"), "status", at, "-o", "json")
			var reports []struct {
				Peers []struct {
					Role, Protocol string
					Down           float64 `json:"downBytesPerSecond"`
				}
			}
			if err != nil || json.Unmarshal([]byte(out), &reports) != nil {
				return false, out
			}
			for _, p := range reports[0].Peers {
				if p.Role == role && p.Protocol == "grpc" && p.Down > 1000 {
					return true, nil
				}
			}
			return false, out
		})
	}
}
