package e2e

import (
	"bufio"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

const (
	edgeIP, edgeNewIP = "10.88.0.2", "10.88.0.3"
	centreIP          = "10.88.0.1"
	edgeProxy         = centreIP + ":3128"
	edgeMemory        = 64 << 20
)

// edge is a small machine with an agent, that reaches the server only by a proxy
// which wants a password.
type edge struct {
	t            *testing.T
	node, centre netns
	suite        *suite.Suite
	ca           *authority
	server       *suite.Process
	agent        *suite.Process
	proxied      atomic.Int64 // connections
}

// newEdge starts a server whose certificate is valid from then on, and the agent:
// with a root that cannot be written to, and little memory.
func newEdge(t *testing.T, from time.Time) *edge {
	t.Helper()
	e := &edge{t: t, node: newNetns(t, "node"), centre: newNetns(t, "centre"), suite: newSuite(t)}
	mustRun(t, "ip", "-n", string(e.node), "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", string(e.centre))
	for ns, address := range map[netns]string{e.node: edgeIP, e.centre: centreIP} {
		ns.ip(t, "address add "+address+"/24 dev eth0")
		ns.ip(t, "link set eth0 up")
	}
	e.ca = newAuthority(t, e.suite, "edge-ca")
	e.startServer(from)
	testutil.ServeOn(t, e.centre.listen(t, edgeProxy), e.proxy)
	const confined = `echo $$ >"$0" && mount --make-rprivate / && mount -o remount,bind,ro / && exec "$@"`
	e.agent = e.node.startWith(t, []string{"HTTPS_PROXY=http://edge:s3cret%40@" + edgeProxy},
		"unshare", "--mount", "sh", "-c", confined, memoryCgroup(t, edgeMemory), binaries.Path("konnectivity-agent"), "--proxy-server-host="+centreIP,
		"--ca-cert="+e.ca.file, "--agent-cert="+e.suite.PKI("agent.crt"), "--agent-key="+e.suite.PKI("agent.key"))
	return e
}

// startServer starts the server, perhaps again, with a certificate that is valid
// from then on.
func (e *edge) startServer(from time.Time) {
	e.t.Helper()
	pki := e.suite.PKI
	cert, key := e.ca.make(e.t, centreLeaf, from, from.Add(day))
	e.server = e.centre.start(e.t, binaries.Path("konnectivity-server"), "--mode=http-connect", "--graceful-shutdown-timeout=1s", "--backend-dial-timeout="+suite.DialBound.String(),
		"--server-ca-cert="+pki("ca.crt"), "--server-cert="+pki("server.crt"), "--server-key="+pki("server.key"),
		"--cluster-ca-cert="+pki("ca.crt"), "--cluster-cert="+cert, "--cluster-key="+key)
	e.centre.awaitOK(e.t, e.server, "http://127.0.0.1:8092/healthz")
}

var centreLeaf = pki.Leaf{CommonName: "cluster", IPs: []net.IP{net.ParseIP(centreIP)}, Server: true}

// memoryCgroup makes a cgroup with so much memory, and returns the file to which
// a process that is to be in it is written.
func memoryCgroup(t *testing.T, bytes int) (procs string) {
	t.Helper()
	root, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(root + "/memory/memory.limit_in_bytes"); err == nil {
		root, limit = root+"/memory", "memory.limit_in_bytes"
	}
	dir, err := os.MkdirTemp(root, "k")
	if err == nil {
		t.Cleanup(func() { _ = os.Remove(dir) })
		err = os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(bytes)), 0o600)
	}
	if err != nil {
		t.Skipf("no cgroup for memory can be made here: %v", err)
	}
	return filepath.Join(dir, "cgroup.procs")
}

// proxy serves CONNECT to clients with the password.
func (e *edge) proxy(c *net.TCPConn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	if r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("edge:s3cret@")) {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
		return
	}
	far, err := inside(e.centre, func() (net.Conn, error) { return net.Dial("tcp", r.Host) })
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer far.Close()
	e.proxied.Add(1)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	up := make(chan struct{})
	go func() { defer close(up); _, _ = io.Copy(far, c); _ = far.Close() }()
	_, _ = io.Copy(c, far)
	_ = c.Close()
	<-up
}

// get fetches size bytes from a port of the node, through the tunnel.
func (e *edge) get(address string) (int, error) {
	out, err := e.centre.run(e.t, "curl", "--silent", "--show-error", "--fail", "--max-time", "170", "--proxytunnel", "--proxy", "https://127.0.0.1:8090",
		"--proxy-cacert", e.suite.PKI("ca.crt"), "--proxy-cert", e.suite.PKI("client.crt"), "--proxy-key", e.suite.PKI("client.key"), "http://"+address+"/")
	return len(out), err
}

// A machine whose clock is wrong when it starts, behind a proxy, with a root that
// cannot be written to: the agent says what keeps it, goes on trying, and serves
// as soon as it can, with a load of more than its memory. Instead of the clock,
// the server's certificate comes right, which to the agent is the same.
func TestAgentAtTheEdge(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, time.Now().Add(day))
	logged(t, e.agent, patience, "correct this machine's clock")
	stopInOrder(t, e.server)
	e.startServer(time.Now().Add(-time.Hour))
	e.node.awaitOK(t, e.agent, "http://127.0.0.1:8093/readyz")
	testutil.AtLeast(t, e.proxied.Load(), 1, "connections of the agent by its proxy")
	out := e.agent.Output()
	testutil.Holds(t, !strings.Contains(out, "s3cret"), "the proxy's password is in the log:\n%s", out)
	const size, clients = 16 << 20, 8
	e.serveBytes(edgeIP+":80", size)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			n, err := e.get(edgeIP + ":80")
			testutil.Holds(t, n == size && err == nil, "%d bytes, %v", n, err)
		})
	}
	all.Wait()
	m := must(e.agent.Memory())(t) // of its own it cannot have more than the kernel lets it, and live
	t.Logf("the agent has held %.1f MiB of its own", float64(m.MostOwn())/(1<<20))
	testutil.Contains(t, must(e.node.run(t, "curl", "--silent", "http://127.0.0.1:8093/metrics"))(t),
		"go_gc_gomemlimit_bytes 6.03979", "how much memory the agent may have")
}

// serveBytes serves so many bytes at a port of the node.
func (e *edge) serveBytes(address string, size int) {
	content := make([]byte, size)
	serve(e.t, e.node.listen(e.t, address), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
}

// A machine that gets another address loses its link without a word, of which the server hears by
// the next link alone. What was open goes on then, before the server could have noticed by itself.
func TestAgentWithAChangingAddress(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, time.Now().Add(-time.Hour))
	e.node.awaitOK(t, e.agent, "http://127.0.0.1:8093/readyz")
	begun, changed := make(chan struct{}), make(chan struct{})
	serve(t, e.node.listen(t, "127.0.0.1:80"), func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "before")
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-changed
		_, _ = io.WriteString(w, ", and after")
	})
	var got sync.WaitGroup
	got.Go(func() {
		n, err := e.get("127.0.0.1:80")
		testutil.Holds(t, n == len("before, and after") && err == nil, "%d bytes, %v", n, err)
	})
	testutil.Receive(t, "the first bytes", begun)
	e.node.ip(t, "address del "+edgeIP+"/24 dev eth0")
	e.node.ip(t, "address add "+edgeNewIP+"/24 dev eth0")
	since := time.Now()
	close(changed)
	got.Wait()
	t.Logf("a pause of %v", time.Since(since).Round(10*time.Millisecond))
	figures := must(e.centre.run(t, "curl", "--silent", "http://127.0.0.1:8092/metrics"))(t)
	resumed := regexp.MustCompile(`server_resumed_connections_total{cause="replaced"} [1-9]`)
	testutil.Holds(t, resumed.MatchString(figures), "it has taken no link's place: %s", figures)
}
