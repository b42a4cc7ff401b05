package hostile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

const adminToken = "0123456789abcdef0123456789abcdef"

// mutate changes a few places of a seed.
func mutate(random *rand.Rand, seed []byte) []byte {
	b := bytes.Clone(seed)
	for range 1 + random.IntN(4) {
		at := random.IntN(len(b) + 1)
		to := at + random.IntN(min(len(b)-at, 40)+1)
		switch random.IntN(5) {
		case 0:
			b = append(b[:at:at], b[to:]...)
		case 1:
			b = append(b[:to:to], b[at:]...) // twice
		case 2:
			b = append(b[:at:at], append(bytes.Repeat([]byte{byte(random.Uint32())}, 1<<random.IntN(14)), b[at:]...)...)
		case 3:
			b = append(b[:at:at], append([]byte(values[random.IntN(len(values))]), b[to:]...)...)
		case 4:
			if at < len(b) {
				b[at] ^= 1 << random.IntN(8)
			}
		}
	}
	return b
}

// values are what no field should have.
var values = []string{
	"", "-1", "0", "99999999999999999999", "1e9", "NaN", "é\xff", " ", "\t", ",", ",,", "=", "&", "%00", "%zz", "..", "../../etc/passwd", "/dev/full", "/",
	"[::1]:x", "[", "127.0.0.1:99999", "0.0.0.0/33", "fe80::1%lo", "1h1", "-5s", "9999999h", "null", "{}", "[[[[", "\"", "'", "*", "http://u:p@h:1", "socks5://", strings.Repeat("9", 3000),
}

// pester has four workers do something until the attack's time is over, and returns how often.
func pester(t *testing.T, do func(random *rand.Rand)) (n int64) {
	t.Helper()
	var count atomic.Int64
	var work sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	for i := range uint64(4) {
		work.Go(func() {
			for random := rand.New(rand.NewPCG(i, 1)); ctx.Err() == nil && !t.Failed(); count.Add(1) {
				do(random)
			}
		})
	}
	work.Wait()
	return count.Load()
}

// dial waits where the kernel has no room for another connection: ports may be in use for a
// second after the last, and the backlog of a unix socket full. nil: it has failed the test.
func dial(t *testing.T, network, address string) net.Conn {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial(network, address)
		if err == nil {
			return conn
		}
		if full := errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EADDRNOTAVAIL); !full || time.Now().After(end) {
			t.Error(err)
			return nil
		}
	}
}

// unharmed fails the test if a process has ended, or has said that it panicked.
func unharmed(t *testing.T, p *suite.Process, healthURL string) {
	t.Helper()
	testutil.Succeeds(t, ask(healthURL), "%s", p.Name)
	out := p.Output()
	testutil.Holds(t, !strings.Contains(out, "panic") && !strings.Contains(out, adminToken), "%s says:\n%s", p.Name, out)
}

// TestOddAdminRequests: requests to a server's admin port are out of order, half of them with
// its token. Without it, none is answered but what is open to all; none hangs.
func TestOddAdminRequests(t *testing.T) {
	s := newSuite(t)
	token := filepath.Join(t.TempDir(), "token")
	testutil.NoError(t, os.WriteFile(token, []byte(adminToken), 0o600))
	srv := must(s.StartServer("--admin-token-file="+token, "--enable-profiling"))(t)
	must(s.StartAgent(srv))(t)
	stop := watch(t, srv.Process, srv.HealthURL("/healthz"))
	var requests [][]byte
	for _, path := range []string{"/", "/?q=x&kind=agent&tenant=a", "/api/v1/status", "/api/v1/connections?limit=10&after=x&client=a&destination=b", "/api/v1/tenants?limit=1", "/api/v1/agents", "/metrics?name[]=x", "/debug/pprof/", "/debug/pprof/heap?gc=1", "/debug/pprof/goroutine?debug=2"} {
		for _, head := range []string{"GET ", "POST ", "PUT ", "HEAD "} {
			requests = append(requests, []byte(head+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\nAccept-Encoding: gzip\r\nContent-Length: 4\r\nRange: bytes=0-1\r\nCookie: token=x\r\nConnection: close\r\n\r\nbody"))
		}
	}
	n := pester(t, func(random *rand.Rand) {
		knows := random.IntN(2) == 0
		request := mutate(random, requests[random.IntN(len(requests))])
		if knows {
			request = bytes.Replace(request, []byte("TOKEN"), []byte(adminToken), 1)
		}
		conn := dial(t, "tcp", suite.Loopback(srv.AdminPort))
		if conn == nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
		_, _ = conn.Write(request)
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		nerr, ok := err.(net.Error)
		testutil.Holds(t, !ok || !nerr.Timeout(), "no end of the answer to %q", request)
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		testutil.Holds(t, err != nil || knows || res.StatusCode != http.StatusOK || len(answer) == 0,
			"%q is answered without the token: %.300q", request, answer)
	})
	f := stop()
	t.Logf("%d requests; %v", n, f)
	testutil.AtMost(t, mib(f.peak-f.idle), mib(maxGrowth), "MiB by which its memory grew")
	unharmed(t, srv.Process, srv.HealthURL("/healthz"))
}

// TestOddSuccessors: what comes to an agent's hand-over socket is out of order, with and
// without a descriptor. The agent keeps its connections, and hands them to a real successor.
func TestOddSuccessors(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	socket := filepath.Join(t.TempDir(), "handover")
	flags := []string{"--agent-id=one", "--handover-socket=" + socket}
	agent := must(s.StartAgent(srv, flags...))(t)
	sidecar := must(s.StartSOCKS5(srv))(t)
	n := neighbourOf(t, s, srv)
	held := must(proxied("socks5", sidecar.Address(), n.target))(t)
	defer held.Close()
	files := func() int { return len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent.PID())))(t)) }
	before := files()
	null := must(os.Open(os.DevNull))(t)
	defer null.Close()
	var seeds [][]byte
	for _, text := range []string{
		`{"kind":"hello","version":1,"id":"one","servers":["a"]}`, `{"kind":"ready","servers":["a","b"]}`, `{"kind":"taken"}`, `{"kind":"refused","reason":"x"}`,
		`{"kind":"offer","conn":{"token":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"id":"x","address":"127.0.0.1:1","local":"127.0.0.1:1","remote":"127.0.0.1:2","window":1000000000,"epoch":1,"taken":5,"from":1,"acked":2,"sent":9},"kept":3}`,
	} {
		seeds = append(seeds, append([]byte{0, 0, 0, byte(len(text)), 0, 0, 0, 0}, text...), append([]byte{0, 0, 0, byte(len(text)), 0, 0, 0, 3}, text+"abc"...))
	}
	count := pester(t, func(random *rand.Rand) {
		conn := dial(t, "unix", socket)
		if conn == nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		for range 1 + random.IntN(4) {
			said := seeds[random.IntN(len(seeds))]
			if random.IntN(3) > 0 {
				said = mutate(random, said)
			}
			var rights []byte
			if random.IntN(3) == 0 {
				rights = syscall.UnixRights(int(null.Fd()))
			}
			_, _, _ = conn.(*net.UnixConn).WriteMsgUnix(said, rights, nil)
		}
		if random.IntN(8) == 0 {
			_, _ = io.Copy(io.Discard, conn)
		}
	})
	end := time.Now().Add(time.Minute)
	for files() > before+5 && time.Now().Before(end) {
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d successors; %d descriptors before, %d now", count, before, files())
	testutil.AtMost(t, files(), before+5, "descriptors")
	testutil.Succeeds(t, roundTrip(held), "a connection of the agent")
	unharmed(t, agent.Process, agent.HealthURL("/healthz"))
	must(s.StartAgent(srv, flags...))(t)
	code, err := agent.Process.Stop()
	testutil.Holds(t, code == 0 && err == nil, "the agent ended with %d, %v", code, err)
	testutil.Succeeds(t, roundTrip(held), "a connection that was handed over")
}

// TestOddFlags gives each flag of server and agent values that it should not have. Each run
// ends by itself, with a sentence.
func TestOddFlags(t *testing.T) {
	s := newSuite(t)
	missing := map[string]string{"konnectivity-server": "--server-cert=/nowhere/x", "konnectivity-agent": "--ca-cert=/nowhere/x"} // keeps it from serving
	var runs [][]string
	for program, more := range missing {
		help := string(must(exec.Command(s.Bin.Path(program), "--help").CombinedOutput())(t))
		for _, word := range strings.Fields(help) {
			if flag := strings.TrimRight(word, ",.;:)"); strings.HasPrefix(flag, "--") && flag != "--help" && flag != "--version" {
				runs = append(runs, []string{program, flag, more})
			}
		}
	}
	n := pester(t, func(random *rand.Rand) {
		run := runs[random.IntN(len(runs))]
		value := values[random.IntN(len(values))]
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, s.Bin.Path(run[0]), run[1]+"="+value, run[2]).CombinedOutput()
		switch text := string(out); {
		case ctx.Err() != nil:
			t.Errorf("%s %s=%q goes on: %.300s", run[0], run[1], value, text)
		case err == nil, strings.Contains(text, "goroutine "), text == "":
			t.Errorf("%s %s=%q: %v: %.1000s", run[0], run[1], value, err, text)
		}
	})
	t.Logf("%d runs of %d flags", n, len(runs))
}
