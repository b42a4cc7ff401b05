package kubeapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// stranger is a client of an API of others, and strangeAPI is that API;
// cert is nil for one of the test's own.
func stranger(t *testing.T, http2 bool, cert *tls.Certificate, answer http.HandlerFunc) kubeapi.TokenReviews {
	t.Helper()
	_, reviews := strangeAPI(t, http2, cert, answer)
	return reviews
}

func strangeAPI(t *testing.T, http2 bool, cert *tls.Certificate, answer http.HandlerFunc) (*httptest.Server, kubeapi.TokenReviews) {
	t.Helper()
	config := new(tls.Config)
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	srv, ca := secureAPI(t, http2, config, answer)
	access := testutil.Must(kubeapi.Access{Server: srv.URL, CA: ca, ServerName: "example.com", Token: "own"}.Config())(t)
	reviews := testutil.Must(kubeapi.NewTokenReviews(access))(t)
	t.Cleanup(reviews.CloseIdle)
	return srv, reviews
}

// secureAPI is an API over TLS, and its CA.
func secureAPI(t *testing.T, http2 bool, config *tls.Config, answer http.HandlerFunc) (srv *httptest.Server, ca []byte) {
	t.Helper()
	srv = httptest.NewUnstartedServer(answer)
	srv.EnableHTTP2, srv.TLS = http2, config
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
}

func review(t *testing.T, reviews kubeapi.TokenReviews) (kubeapi.TokenReviewStatus, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return reviews.Create(ctx, kubeapi.TokenReviewSpec{Token: "x"})
}

const good = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true}}`

// An API that answers without end is left alone: it is a tenant's, whose owner may
// mean harm to all who share the server.
func TestAnswersWithoutEndAreNotRead(t *testing.T) {
	const end = 64 << 20 // enough to notice if it is read to the end
	block := bytes.Repeat([]byte(" "), 64<<10)
	for name, write := range map[string]func(w http.ResponseWriter, sent *atomic.Int64){
		"body": func(w http.ResponseWriter, sent *atomic.Int64) {
			for sent.Load() < end {
				n, err := w.Write(block)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		},
		"header": func(w http.ResponseWriter, _ *atomic.Int64) {
			w.Header().Set("Warning", `299 - "`+strings.Repeat("x", 128<<10)+`"`)
		},
	} {
		for _, http2 := range []bool{true, false} {
			var sent atomic.Int64
			reviews := stranger(t, http2, nil, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				write(w, &sent)
				_, _ = io.WriteString(w, good)
			})
			got, err := review(t, reviews)
			testutil.Fails(t, err, "%s without end, HTTP/2 %v: %+v", name, http2, got)
			testutil.Holds(t, name == "header" || strings.Contains(err.Error(), "more than 65536 bytes"), "%v", err)
			testutil.Holds(t, sent.Load() < end, "%s, HTTP/2 %v: all of it was read", name, http2)
		}
	}
}

// What a client needs is not bounded too closely: many reviews at once, and answers
// that repeat a long token.
func TestTokenReviewsByATenantsAPI(t *testing.T) {
	for _, http2 := range []bool{true, false} {
		var open, most atomic.Int64
		reviews := stranger(t, http2, nil, func(w http.ResponseWriter, _ *http.Request) {
			now := open.Add(1)
			defer open.Add(-1)
			for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
			}
			time.Sleep(time.Millisecond)
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"%s"},"status":{"authenticated":true}}`, strings.Repeat("x", 16<<10))
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				got, err := review(t, reviews)
				testutil.Holds(t, err == nil && got.Authenticated, "HTTP/2 %v: %v", http2, err)
			})
		}
		all.Wait()
		testutil.Holds(t, http2 || most.Load() <= 8, "%d connections at once", most.Load())
	}
}

// A redirect would lead elsewhere with the credentials.
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var asked atomic.Int32
		srv, reviews := strangeAPI(t, true, nil, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			http.Redirect(w, r, "/elsewhere", code)
		})
		testutil.ErrorSays(t, testutil.Err(review(t, reviews)), "none is followed", "a review")
		services := testutil.Must(kubeapi.Access{Server: srv.URL}.NewServices(srv.Client().Transport))(t)
		testutil.Fails(t, testutil.Err(services.In("ns").Get(t.Context(), "a")), "a Service")
		testutil.Equal(t, asked.Load(), 2, "how often it was asked")
	}
}

// Connections that end give their places back, whatever they were used for.
func TestConnectionsThatEndGiveTheirPlacesBack(t *testing.T) {
	for _, http2 := range []bool{true, false} {
		srv, reviews := strangeAPI(t, http2, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, good)
		})
		for range 20 {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { _, _ = review(t, reviews) }) // which may be cut
			}
			srv.CloseClientConnections()
			all.Wait()
			srv.CloseClientConnections()
		}
		var err error
		for range 3 { // the first may be by a connection that is about to be found closed
			if _, err = review(t, reviews); err == nil {
				break
			}
		}
		testutil.Succeeds(t, err, "HTTP/2 %v", http2)
	}
}

// A certificate that is full of names is not kept for as long as its connection.
func TestCertificatesFullOfNamesAreRefused(t *testing.T) {
	ca := testutil.Must(pki.NewCA("ca"))(t)
	for names, want := range map[int]string{1: "", 16 << 10: "bytes of memory"} {
		pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "api", DNS: append(slices.Repeat([]string{"a"}, names), "example.com"), Server: true}))(t)
		cert := pair.TLS()
		_, err := review(t, stranger(t, true, &cert, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, good)
		}))
		testutil.ErrorSays(t, err, want, "%d names", names)
	}
}
