package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"konnectivity/internal/pki"
)

// block is repeated to make payloads of any size whose every byte counts.
var block = func() []byte {
	b := make([]byte, 1<<20+13) // not a multiple of anything
	_, _ = rand.Read(b)
	return b
}()

// payload is a stream of n bytes that a given seed always makes alike.
type payload struct{ pos, left int64 }

func newPayload(seed, n int64) *payload { return &payload{pos: seed * 7919, left: n} }

func (p *payload) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(int64(len(b)), p.left)], block[p.pos%int64(len(block)):])
	p.pos += int64(n)
	p.left -= int64(n)
	return n, nil
}

// sum is the SHA-256 of a payload, in hex.
func sum(seed, n int64) string {
	h, _ := hashOf(newPayload(seed, n))
	return h
}

// hashOf reads r to its end.
func hashOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}

// target is a web server behind the agent: GET /SEED/SIZE sends a payload, PUT
// answers with the hash of what it got.
type target struct {
	plain, secure *httptest.Server
	ca            *pki.CA
}

func newTarget(t *testing.T) *target {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{seed}/{size}", func(w http.ResponseWriter, r *http.Request) {
		seed, _ := strconv.ParseInt(r.PathValue("seed"), 10, 64)
		size, _ := strconv.ParseInt(r.PathValue("size"), 10, 64)
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.Copy(w, newPayload(seed, size))
	})
	mux.HandleFunc("PUT /", func(w http.ResponseWriter, r *http.Request) {
		if h, err := hashOf(r.Body); err == nil {
			fmt.Fprint(w, h)
		}
	})
	ca := must(pki.NewCA("target CA"))(t)
	pair := must(ca.Issue(pki.Leaf{CommonName: "target", DNS: []string{"localhost"}, Server: true}))(t)
	tg := &target{plain: httptest.NewServer(mux), secure: httptest.NewUnstartedServer(mux), ca: ca}
	tg.secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	tg.secure.StartTLS()
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{tg.plain, tg.secure} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	return tg
}
