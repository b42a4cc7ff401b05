package kube

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/testutil"
)

// get asks the API server's front; the caller closes the body.
func (a *apiserver) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := a.Client().Do(req)
	if err == nil && res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		return nil, fmt.Errorf("%s: %s", res.Status, text)
	}
	return res, err
}

// put sends body and compares what the kubelet got.
func (a *apiserver) put(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, a.URL+"/hash", bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := a.Client().Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(body); string(text) != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("%s: %.100s is not the hash of what was sent", res.Status, text)
	}
	return nil
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// watchedEvents is what a watch is to bring at least.
const watchedEvents = 10

// TestTraffic has requests and sessions come and go beside watches that are held.
func TestTraffic(t *testing.T) {
	inEveryKind(t, func(t *testing.T, c *cluster, api *apiserver) {
		base := c.measure(t)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var watches, sessions, requests errgroup.Group
		var begun atomic.Int32 // watches that have brought as much
		for range 50 {
			watches.Go(func() error { return api.watch(ctx, &begun) })
		}
		for range 30 {
			sessions.Go(func() error { return api.exec(t.Context(), 20) })
		}
		requests.SetLimit(25)
		for i := range 200 {
			requests.Go(func() error { return api.put(t.Context(), noise(1+i*i*20)) })
		}
		requests.Go(func() error { return api.put(t.Context(), noise(32<<20)) })
		testutil.NoError(t, errors.Join(requests.Wait(), sessions.Wait()))
		for end := time.Now().Add(patience); begun.Load() < 50 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		leave()
		testutil.NoError(t, watches.Wait())
		api.rest()
		c.settle(t, base)
	})
}

// exec opens a session and expects every message back.
func (a *apiserver) exec(ctx context.Context, messages int) error {
	dialer := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}, HandshakeTimeout: patience}
	conn, res, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(a.URL, "http")+"/exec", nil)
	if err != nil {
		return fmt.Errorf("exec: %w (%v)", err, res)
	}
	defer conn.Close()
	for i := range messages {
		sent := noise(1 + i*i*200)
		if err := conn.WriteMessage(websocket.BinaryMessage, sent); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, got, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("message %d of %d bytes came back as %d others", i, len(sent), len(got))
		}
	}
	return nil
}

// watch reads events in order until ctx ends, and fails if one is missing or
// they cease.
func (a *apiserver) watch(ctx context.Context, begun *atomic.Int32) error {
	res, err := a.get(ctx, "/watch")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	i := 0
	for lines.Scan() {
		if want := fmt.Sprintf("event %d", i); lines.Text() != want {
			return fmt.Errorf("%q came instead of %q", lines.Text(), want)
		}
		if i++; i == watchedEvents {
			begun.Add(1)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the watch ended after %d events: %v", i, lines.Err())
	}
	// An event is due every 50 ms; a busy machine may be slow, not silent.
	if i < watchedEvents {
		return fmt.Errorf("only %d events came", i)
	}
	return nil
}

// logStreams is how many follow logs at once.
const logStreams = 200

// TestAbandonedLogs is many an operator's Ctrl-C: streams in full flow are
// left at random, some without a single read, and nothing may remain. It takes
// long, so a sidecar's clients, whom httpsproxy tests, do without.
func TestAbandonedLogs(t *testing.T) {
	inKinds(t, direct, func(t *testing.T, c *cluster, api *apiserver) {
		base := c.measure(t)
		var all errgroup.Group
		var opened sync.WaitGroup
		opened.Add(logStreams)
		for i := range logStreams {
			all.Go(func() error { return api.abandon(t.Context(), &opened, i%5 != 0) })
		}
		testutil.NoError(t, all.Wait())
		ctx := testutil.ContextFor(t, patience/2)
		testutil.Succeeds(t, api.exec(ctx, 1), "exec right after")
		api.rest()
		c.settle(t, base)
	})
}

// abandon leaves a stream up to a second after all of them are open.
func (a *apiserver) abandon(ctx context.Context, opened *sync.WaitGroup, read bool) error {
	ctx, leave := context.WithTimeout(ctx, 3*patience)
	defer leave()
	res, err := a.get(ctx, "/logs")
	opened.Done()
	if err != nil {
		return err
	}
	defer res.Body.Close()
	opened.Wait()
	left := time.AfterFunc(time.Duration(mathrand.Int64N(int64(time.Second))), leave)
	defer left.Stop()
	if read {
		_, _ = io.Copy(io.Discard, res.Body)
	}
	<-ctx.Done()
	return nil
}
