package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"konnectivity/internal/pki"
)

const (
	// nodeIP is the node's address, which only agents reach.
	nodeIP = "127.77.0.1"

	// logLines is how long the log of a container is.
	logLines = 20_000

	// logPause is between two lines of a log that is followed.
	logPause = 50 * time.Millisecond
)

// node is a stand-in kubelet: TLS with a certificate of the cluster, clients by
// certificate, and what container runtimes use to serve streams.
type node struct {
	port      int
	following atomic.Int64
}

func newNode(t *testing.T, z *zone, ca *pki.CA) *node {
	t.Helper()
	n := &node{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.logs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", n.exec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", n.portForward)
	n.port = serveTLS(t, z, nodeIP, ca, ca, pki.Leaf{CommonName: "system:node:node-1", IPs: []net.IP{net.ParseIP(nodeIP)}}, mux)
	return n
}

// serveTLS serves in the zone with a certificate of ca, and asks clients for a
// certificate of clients.
func serveTLS(t *testing.T, z *zone, ip string, ca, clients *pki.CA, leaf pki.Leaf, handler http.Handler) (port int) {
	t.Helper()
	leaf.Server = true
	pair := must(ca.Issue(leaf))(t)
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close()
	s.Listener = z.listen(t, ip)
	s.EnableHTTP2 = true // as kubelets have
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients.Pool()
	}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// logs are numbered lines: all there are, or with follow one after the other
// until the client leaves.
func (n *node) logs(w http.ResponseWriter, req *http.Request) {
	if req.FormValue("follow") != "true" {
		out := bufio.NewWriter(w)
		defer out.Flush()
		for i := range logLines {
			fmt.Fprintln(out, logLine(i))
		}
		return
	}
	n.following.Add(1)
	defer n.following.Add(-1)
	tick := time.NewTicker(logPause)
	defer tick.Stop()
	for i := 0; ; i++ {
		if _, err := fmt.Fprintln(w, logLine(i)); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-tick.C:
		case <-req.Context().Done():
			return
		}
	}
}

func logLine(i int) string { return fmt.Sprintf("%08d the quick brown fox jumps over the lazy dog", i) }

// Streams end after an hour without a byte, and must come within 30 s, as
// kubelet has it.
const (
	streamIdle     = time.Hour
	streamCreation = 30 * time.Second
)

func (n *node) exec(w http.ResponseWriter, req *http.Request) {
	options, err := remotecommand.NewOptions(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, req, n, req.PathValue("pod"), "", req.PathValue("container"), req.URL.Query()["command"],
		options, streamIdle, streamCreation, remotecommand.SupportedStreamingProtocols)
}

// ExecInContainer knows cat, and a command that fails.
func (n *node) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	switch cmd[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "fail":
		return utilexec.CodeExitError{Err: errors.New("it failed"), Code: 7}
	}
	return fmt.Errorf("no such command: %q", cmd)
}

func (n *node) portForward(w http.ResponseWriter, req *http.Request) {
	portforward.ServePortForward(w, req, n, req.PathValue("pod"), "", nil, streamIdle, streamCreation, portforward.SupportedProtocols)
}

// PortForward echoes.
func (n *node) PortForward(_ context.Context, _, _ string, _ int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, err := io.Copy(stream, stream)
	return err
}
