package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// The passwords of a sidecar hold for both protocols, on one port and on two, and
// are not to be found by trying.
func TestPasswordsHoldForBothFronts(t *testing.T) {
	t.Parallel()
	w := newSuite(t)
	srv := must(w.StartServer())(t)
	must(w.StartAgent(srv))(t)
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, []byte("anna:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := testutil.ReservedAddress(t)
	_, port, _ := net.SplitHostPort(second)
	s := must(w.StartSOCKS5(srv, "--socks5-credentials-file="+file, "--http-serving-port="+port))(t)
	alone := must(w.StartHTTPS(srv, "--socks5-credentials-file="+file))(t)
	get := func(proxy string) bool {
		res, err := clientBy(proxy).Get(srv.HealthURL("/healthz"))
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
	for _, port := range []string{"socks5://%s" + s.Address(), "http://%s" + second, "http://%s" + alone.Address()} {
		for user, ok := range map[string]bool{"": false, "anna:wrong@": false, "anna:secret@": true} {
			if proxy := fmt.Sprintf(port, user); get(proxy) != ok {
				t.Errorf("%s: want %v", proxy, ok)
			}
		}
	}
	// Whoever guesses without end, on many connections, does so slowly, and keeps
	// nobody out, not even at its own address.
	const d = 3 * time.Second
	guesses := make(chan int, 1)
	began := time.Now()
	go func() { guesses <- guess(s.Address(), d) }()
	time.Sleep(d / 3)
	if !get("socks5://anna:secret@" + s.Address()) {
		t.Error("anna is locked out")
	}
	n := <-guesses
	// 20 at once and then 25 a second, however slow this machine is.
	took := time.Since(began)
	if t.Logf("%d guesses in %v", n, took); n > 40+int(26*took.Seconds()) {
		t.Errorf("%d guesses in %v", n, took)
	}
	if log := s.Output(); strings.Contains(log, "secret") || strings.Contains(log, "guess7") {
		t.Errorf("the log: %s", log)
	}
}

// guess tries passwords of SOCKS5 for a while, on 64 connections at a time, and
// says how many were answered.
func guess(address string, d time.Duration) int {
	var all sync.WaitGroup
	var answered atomic.Int32
	for n := range 64 {
		all.Go(func() {
			for start := time.Now(); time.Since(start) < d; {
				c, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				password := fmt.Sprint("guess", n)
				fmt.Fprintf(c, "\x05\x01\x02\x01\x04anna%c%s", len(password), password)
				if got, _ := io.ReadAll(c); len(got) > 2 { // the method, and the verdict
					answered.Add(1)
				}
				_ = c.Close()
			}
		})
	}
	all.Wait()
	return int(answered.Load())
}
