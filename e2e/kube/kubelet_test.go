package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// kubelet stands for one behind the agents: TLS, as a real one.
type kubelet struct {
	*httptest.Server
	open atomic.Int64 // requests that are being served
}

func newKubelet(t *testing.T) *kubelet {
	k := &kubelet{}
	mux := http.NewServeMux()
	mux.HandleFunc("/hash", k.hash)
	mux.HandleFunc("/watch", k.watch)
	mux.HandleFunc("/logs", k.logs)
	mux.HandleFunc("/exec", k.exec)
	k.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		k.open.Add(1)
		defer k.open.Add(-1)
		mux.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		k.CloseClientConnections()
		k.Close()
	})
	return k
}

// hash answers with the SHA-256 of what was sent.
func (k *kubelet) hash(w http.ResponseWriter, req *http.Request) {
	h := sha256.New()
	if _, err := io.Copy(h, req.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
}

// watch sends numbered events until the client leaves.
func (k *kubelet) watch(w http.ResponseWriter, req *http.Request) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if _, err := fmt.Fprintf(w, "event %d\n", i); err != nil {
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

// logs sends as much as is taken, in bursts, until the client leaves.
func (k *kubelet) logs(w http.ResponseWriter, req *http.Request) {
	line := make([]byte, 4<<10)
	for req.Context().Err() == nil {
		for range 8 {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
	}
}

// exec echoes websocket messages, with the subprotocol of kubectl exec.
func (k *kubelet) exec(w http.ResponseWriter, req *http.Request) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, req, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}
