package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// A client that asks for what is forbidden, again and again, is told so each
// time, and the log of who forbids it some times.
func TestRefusedDestinationsDoNotFillTheLogs(t *testing.T) {
	w := newSuite(t)
	srv := must(w.StartServer("--deny-destination=192.0.2.1"))(t)
	agent := must(w.StartAgent(srv, "--deny-destination=192.0.2.2"))(t)
	began := time.Now()
	for address, p := range map[string]*suite.Process{"192.0.2.1:80": srv.Process, "192.0.2.2:80": agent.Process} {
		for range 200 {
			c := must(net.Dial("unix", srv.UDS))(t)
			_, _ = io.WriteString(c, "CONNECT "+address+" HTTP/1.1\r\nHost: x\r\n\r\n")
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 403" {
				t.Fatalf("%s: %q, %v", address, answer, err)
			}
			_ = c.Close()
		}
		const line = `by policy","time"`
		logged(t, p, patience, line)
		if n, most := strings.Count(p.Output(), line), 25*(1+int(time.Since(began)/time.Minute)); n > most {
			t.Errorf("%s: %d lines of 200 refusals, want at most %d", p.Name, n, most)
		}
	}
}

// Who reads a program's output may go away: the program serves on.
func TestProgramsOutliveTheReaderOfTheirLog(t *testing.T) {
	t.Parallel()
	w := newSuite(t)
	srv := must(w.StartServer())(t)
	health := testutil.Reserved(t)
	for program, args := range map[string][]string{
		"konnectivity-agent": {
			"--proxy-server-host=127.0.0.1", "--proxy-server-port=1", "--admin-server-port=0",
			"--health-server-host=127.0.0.1", "--health-server-port=" + strconv.Itoa(health), "--ca-cert=" + w.PKI("ca.crt"),
			"--agent-cert=" + w.PKI("agent.crt"), "--agent-key=" + w.PKI("agent.key"), "-v=5",
		},
		"konnectivity-socks5-proxy": {
			"--konnectivity-hostname=127.0.0.1", "--konnectivity-port=" + strconv.Itoa(srv.ClientPort), "--serving-port=0",
			"--health-address=" + suite.Loopback(health), "--ca-cert-path=" + w.PKI("ca.crt"),
			"--tls-cert-path=" + w.PKI("client.crt"), "--tls-key-path=" + w.PKI("client.key"), "-v=5",
		},
	} {
		t.Run(program, func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(w.Bin.Path(program), args...)
			cmd.Stdout, cmd.Stderr = write, write
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_, _ = write.Close(), read.Close()
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
			healthy := func() bool {
				res, err := http.Get("http://" + suite.Loopback(health) + "/healthz")
				if err == nil {
					_ = res.Body.Close()
				}
				return err == nil && res.StatusCode == http.StatusOK
			}
			for start := time.Now(); !healthy(); time.Sleep(20 * time.Millisecond) {
				if time.Since(start) > patience || len(ended) > 0 {
					t.Fatal("it does not come up")
				}
			}
			for range 50 { // it logs meanwhile
				time.Sleep(20 * time.Millisecond)
				if !healthy() || len(ended) > 0 {
					t.Fatal("it ended with the reader of its log")
				}
			}
		})
	}
}

// What peers call themselves, and answer, reaches no terminal in a way that
// steers it.
func TestNamesOfPeersAreShownPlainly(t *testing.T) {
	const evil = "a\u202egnp.\u200bexe\u2028\x1b[2J"
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	now := time.Now()
	mux.Handle("/api/v1/status", answer(admin.Status{Component: evil, ID: evil, Reason: evil, Peers: map[string]int{"agent": 1, evil: 1},
		Strategies: map[string]int{evil: 0}, LastGone: &admin.Departure{ID: evil, Cause: evil, Time: now}}))
	mux.Handle("/api/v1/peers", answer(admin.Page[admin.Peer]{Items: []admin.Peer{{Role: "agent", ID: evil, Remote: evil, Silent: 9, RoundTrip: 1}}}))
	mux.Handle("/api/v1/connections", answer(admin.Page[admin.Connection]{Items: []admin.Connection{{ID: evil, Destination: evil, Source: evil}}}))
	mux.Handle("/api/v1/failures", answer(admin.Page[admin.Failure]{Items: []admin.Failure{{ID: evil, Destination: evil, Cause: evil, Failure: evil, Next: evil}}}))
	rogue := httptest.NewServer(mux)
	defer rogue.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": evil})
	}))
	defer refusing.Close()
	address := rogue.Listener.Addr().String()
	w := newSuite(t)
	srv := must(w.StartServer())(t)
	checked := func(more ...string) []string {
		return append([]string{"check", "--konnectivity-hostname=127.0.0.1", "--konnectivity-port=" + strconv.Itoa(srv.ClientPort), "--ca-cert-path=" + w.PKI("ca.crt"),
			"--tls-cert-path=" + w.PKI("client.crt"), "--tls-key-path=" + w.PKI("client.key")}, more...)
	}
	for _, args := range [][]string{
		{"status", address}, {"status", "-o=json", address}, {"status", refusing.Listener.Addr().String()},
		checked("--server-admin=" + address), checked("-o=json", "--server-admin="+address), checked("--server-admin=" + refusing.Listener.Addr().String()),
	} {
		out, err := exec.Command(binaries.Path("konnectivity"), args...).CombinedOutput()
		if !strings.Contains(string(out), "a?gnp.?exe??[2J") {
			t.Errorf("%q shows nothing of it: %v, %q", args, err, out)
		}
		if strings.ContainsAny(string(out), "\u202e\u200b\u2028\x1b") {
			t.Errorf("%q: %q", args, out)
		}
	}
}
