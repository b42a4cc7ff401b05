package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/internal/testutil"
)

const (
	echoAddress = nodeIP + ":7777"
	echoBeside  = "127.0.0.1:7777" // without the tunnel: how busy the machine is
	transfers   = 40               // that echo all the while
	sessions    = 20               // of kubectl exec
	idle        = 2000             // connections that are used once more at the end
)

// TestAgentsAreReplaced rolls the agents' DaemonSet out twice, under connections of every
// kind: none is lost.
func TestAgentsAreReplaced(t *testing.T) {
	if !isolate(t) {
		return
	}
	w := newWorld(t)
	commands := blocks(t)[1]
	server := strings.ReplaceAll(block(t, "manifests/README.md"), "path/to/", "../")
	agents := strings.Replace(block(t, "manifests/agent/README.md"), "agent/daemonset-token", "agent/daemonset-host-network", 1)
	w.install(commands, map[string]string{"my-server": server, "my-agents": agents})
	w.nodes.do("", "-n", "kube-system", "rollout", "status", "daemonset/konnectivity-agent", "--timeout=60s")

	w.start("echo", "nsenter", "--net="+nodesNet, "env", echoIn+"="+echoAddress, must(os.Executable())(t))
	w.start("echo beside", "env", echoIn+"="+echoBeside, must(os.Executable())(t))
	dialer := w.startSidecar()
	l := w.press(dialer)
	wait(t, "all connections are used", func() error {
		if n := l.used.Load(); n < 2*transfers+sessions {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	for range 2 {
		before := w.agentPod()
		began := time.Now()
		w.nodes.do("", "-n", "kube-system", "rollout", "restart", "daemonset/konnectivity-agent")
		w.nodes.do("", "-n", "kube-system", "rollout", "status", "daemonset/konnectivity-agent", "--timeout=60s")
		wait(t, "the agent before is gone", func() error {
			if now := w.agentPod(); now == before || strings.Contains(now, " ") {
				return fmt.Errorf("the agents are %s", now)
			}
			return nil
		})
		fmt.Printf("%5.1f s  a rollout\n", time.Since(began).Seconds())
		time.Sleep(time.Second)
	}
	l.end(t)
}

// agentPod returns the names of the agents' pods.
func (w *world) agentPod() string {
	w.t.Helper()
	return w.nodes.do("", "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=konnectivity-agent", "-o", "jsonpath={.items[*].metadata.name}")
}

// startSidecar runs a SOCKS5 proxy that reaches the server as the first cluster's pods do.
func (w *world) startSidecar() proxy.ContextDialer {
	dir, host := w.clientFiles("sidecar")
	const address = "127.0.0.1:1080"
	w.start("socks5", filepath.Join(w.installed, "bin", "konnectivity-socks5-proxy"), "--konnectivity-hostname="+host, "--konnectivity-port=8090", "--serving-port=1080",
		"--server-name=konnectivity-server-local", "--ca-cert-path="+dir+"/ca.crt", "--tls-cert-path="+dir+"/tls.crt", "--tls-key-path="+dir+"/tls.key")
	return must(proxy.SOCKS5("tcp", address, nil, proxy.Direct))(w.t).(proxy.ContextDialer)
}

// clientFiles writes a client's certificate to a folder of that name, and returns that and the
// address of the servers' Service for clients.
func (w *world) clientFiles(name string) (dir, host string) {
	dir = filepath.Join(w.dir, name)
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		encoded := w.control.do("", "-n", "my-control-plane", "get", "secret", "konnectivity-client", "-o", "go-template={{index .data \""+file+"\" | base64decode}}")
		write(w.t, filepath.Join(dir, file), encoded)
	}
	return dir, w.control.do("", "-n", "my-control-plane", "get", "service", "konnectivity-server-local", "-o", "jsonpath={.spec.clusterIP}")
}

// load is the connections through agents, and what became of them.
type load struct {
	over     chan struct{}
	running  sync.WaitGroup
	messages atomic.Int64
	used     atomic.Int64 // connections of which a line came back
	failed   chan error

	mu     sync.Mutex
	pauses map[string][]time.Duration // of each kind, the longest of each connection
}

// press begins all connections.
func (w *world) press(d proxy.ContextDialer) *load {
	t := w.t
	l := &load{over: make(chan struct{}), failed: make(chan error, 2*transfers+sessions+idle), pauses: map[string][]time.Duration{}}
	open := func(d proxy.ContextDialer, address string) net.Conn {
		var c net.Conn
		wait(t, "a connection is made", func() (err error) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, err = d.DialContext(ctx, "tcp", address)
			return err
		})
		return c
	}
	for range transfers {
		c := open(d, echoAddress)
		l.count("a transfer", c, bufio.NewReader(c), c.Close, 16<<10)
		c = open(proxy.Direct, echoBeside)
		l.count("without the tunnel", c, bufio.NewReader(c), c.Close, 16<<10)
	}
	for range sessions {
		cmd := exec.Command(program("kubectl"), "exec", "-i", "hello", "--", "/bin/sh", "-c", "while read -r l; do echo \"$l\"; done")
		cmd.Env = []string{"KUBECONFIG=" + w.nodes.kubeconfig, "HOME=" + w.dir}
		in, out := must(cmd.StdinPipe())(t), must(cmd.StdoutPipe())(t)
		testutil.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		l.count("kubectl exec", in, bufio.NewReader(out), in.Close, 64)
	}
	for range idle {
		c := open(d, echoAddress)
		l.running.Go(func() {
			defer c.Close()
			<-l.over
			_ = c.SetDeadline(time.Now().Add(patience))
			got := make([]byte, 5)
			_, err := io.WriteString(c, "hello")
			if err == nil {
				_, err = io.ReadFull(c, got)
			}
			if err != nil || string(got) != "hello" {
				l.failed <- fmt.Errorf("an idle connection: %q, %w", got, err)
			}
		})
	}
	return l
}

// count sends numbered lines of that size until the end, and reads each back.
func (l *load) count(what string, to io.Writer, from *bufio.Reader, end func() error, size int) {
	filler := strings.Repeat("x", size)
	l.running.Go(func() {
		var longest time.Duration
		defer end()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.pauses[what] = append(l.pauses[what], longest)
		}()
		for n := uint64(0); ; n++ {
			line := fmt.Sprintf("%x %s\n", binary.BigEndian.AppendUint64(nil, n), filler)
			began := time.Now()
			if _, err := io.WriteString(to, line); err != nil {
				l.failed <- fmt.Errorf("%s: %w", what, err)
				return
			}
			if got, err := from.ReadString('\n'); err != nil || got != line {
				l.failed <- fmt.Errorf("%s, line %d: %d bytes of %d came back: %w", what, n, len(got), len(line), err)
				return
			}
			l.messages.Add(1)
			if n == 0 { // it has waited for kubectl to start
				l.used.Add(1)
			} else {
				longest = max(longest, time.Since(began))
			}
			select {
			case <-l.over:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
}

// end looks at the idle connections, and fails the test if any was lost.
func (l *load) end(t *testing.T) {
	close(l.over)
	l.running.Wait()
	close(l.failed)
	for err := range l.failed {
		t.Error(err)
	}
	fmt.Printf("%d lines came back; the longest pause of a connection:\n", l.messages.Load())
	for what, pauses := range l.pauses {
		slices.Sort(pauses)
		fmt.Printf("%5.2f s  p50, %.2f s at most: %s\n", pauses[len(pauses)/2].Seconds(), pauses[len(pauses)-1].Seconds(), what)
	}
}

// echoIn is set, to its address, in a process that is an echo server.
const echoIn = "KONNECTIVITY_ECHO"

func serveEcho(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
