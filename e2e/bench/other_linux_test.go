package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/testutil"
)

// beTunnel is a program of a tunnel, where name is one of theirs.
func beTunnel(name string) bool {
	switch name {
	case "near":
		pass("front.sock", func() (net.Conn, error) { return net.Dial("unix", file("line.sock")) })
	case "far":
		pass("line.sock", func() (net.Conn, error) { return net.Dial("tcp", os.Getenv("TARGET")) })
	default:
		return false
	}
	return true
}

func file(name string) string { return filepath.Join(os.Getenv("FILES"), name) }

// pass carries connections from a socket to where dial leads. Until it is killed.
func pass(socket string, dial func() (net.Conn, error)) {
	l, err := net.Listen("unix", file(socket))
	if err != nil {
		panic(err)
	}
	via, _ := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), "via"))
	_ = bench.Accept(context.Background(), l, func(c net.Conn) {
		if socket == "front.sock" && strings.HasPrefix(string(via), "connect ") {
			asked, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil || asked.Method != http.MethodConnect || asked.Host != os.Getenv("TARGET") {
				fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
				return
			}
			fmt.Fprint(c, "HTTP/1.1 200 Connection Established\r\n\r\n")
		}
		next, err := dial()
		if err != nil {
			return
		}
		defer next.Close()
		go func() { _, _ = io.Copy(next, c) }()
		_, _ = io.Copy(c, next)
	})
}

// self stands for this program.
const self = ""

// folder makes the folder of a tunnel, of scripts or self.
func folder(t *testing.T, near, far, via string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "peer")
	testutil.NoError(t, os.Mkdir(dir, 0o755))
	program := testutil.Must(os.Executable())(t)
	for name, script := range map[string]string{"near": near, "far": far} {
		if script == self {
			testutil.NoError(t, os.Symlink(program, filepath.Join(dir, name)))
		} else {
			testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
		}
	}
	testutil.NoError(t, os.WriteFile(filepath.Join(dir, "via"), []byte(via), 0o644))
	return dir
}

// startPeer starts the tunnel of a folder, with both its ends here, before a target.
func startPeer(t *testing.T, ctx context.Context, dir string) (p bench.Path, atFar int, err error) {
	t.Helper()
	checkGoroutines(t)
	all := testutil.Must(readOthers([]string{dir}))(t)
	l := testutil.Listen(t)
	serving, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = bench.ServeTarget(serving, l) })
	files := testutil.Must(os.MkdirTemp("", "k"))(t) // short: unix sockets live in it
	s := &suite.Suite{Dir: files}
	t.Cleanup(func() {
		s.Close()
		stop()
		wg.Wait()
		os.RemoveAll(files)
	})
	p, err = all[0].start(ctx, s, func(start func() error) error { atFar++; return start() }, l.Addr().String())
	return p, atFar, err
}

// Another tunnel is measured from one of its ends to the other.
func TestOther(t *testing.T) {
	for _, via := range []string{"tcp front.sock", "connect front.sock\n"} {
		t.Run(strings.Fields(via)[0], func(t *testing.T) {
			p, atFar, err := startPeer(t, t.Context(), folder(t, self, self, via))
			testutil.NoError(t, err)
			testutil.Holds(t, p.Name == "peer" && atFar == 1,
				"the path is %q and %d programs are at the far end, want peer and 1", p.Name, atFar)
			if got, err := p.Bulk(t.Context(), bench.Down, 2, 1<<20); err != nil || got.Bytes != 2<<20 {
				t.Errorf("got %d of %d bytes: %v", got.Bytes, 2<<20, err)
			}
		})
	}
}

// The error of a tunnel that does not start has what its programs printed, and what a
// tunnel needs.
func TestOtherFails(t *testing.T) {
	const stays = "exec sleep 600"
	for _, c := range []struct {
		name, near, far string
		length          time.Duration
		want            string
	}{
		{"far ends", stays, "echo no certificate; exit 1", time.Minute, "far has ended before anything got through:\nno certificate"},
		{"near never listens", "echo idle; " + stays, stays, 300 * time.Millisecond, "nothing gets through"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.length)
			defer cancel()
			_, _, err := startPeer(t, ctx, folder(t, c.near, c.far, "tcp front.sock"))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "near must listen at front.sock") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A folder that has no tunnel is reported before anything is measured.
func TestReadOthers(t *testing.T) {
	good := folder(t, self, self, "tcp front.sock")
	plain := folder(t, self, self, "tcp front.sock")
	testutil.NoError(t, os.Remove(filepath.Join(plain, "far")))
	for dirs, want := range map[string]string{
		folder(t, self, self, "telnet :1"): "want tcp, socks5 or connect",
		folder(t, self, self, "tcp"):       "want tcp, socks5 or connect",
		plain:                              "want executables near and far",
		good + "," + good:                  `there is another "peer"`,
	} {
		testutil.ErrorSays(t, testutil.Err(readOthers(strings.Split(dirs, ","))), want, "%s", dirs)
	}
	ls := testutil.Must(parseLines([]string{"-subjects=ours", "-other=" + good}))(t)
	testutil.Holds(t, slices.Equal(ls.subjects, []string{"ours", "peer"}) && len(ls.others) == 1,
		"subjects %v and tunnels %v, and so not this one", ls.subjects, ls.others)
	testutil.ErrorSays(t, testutil.Err(parseLines([]string{"-subjects=ours,raw"})), `no subject "raw": want some of ours,`, "a misspelt subject")
	testutil.ErrorSays(t, testutil.Err(parseLines([]string{"-tests=down,upp"})), `no test "upp": want some of down,up,`, "a misspelt test")
	testutil.ErrorSays(t, testutil.Err(parseLines([]string{"-rate=50", "loss=1"})), `"loss=1" is no flag`, "a flag without its dash")
}
