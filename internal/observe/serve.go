package observe

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
)

const (
	// readHeaderTimeout bounds the time until a request is complete, as for all
	// handshakes of the suite.
	readHeaderTimeout = 10 * time.Second
	// idleTimeout is longer than the intervals of scrapers and probes, whose
	// connections stay open.
	idleTimeout = 2 * time.Minute
	// maxHeaderBytes is ample for scrapers and probes.
	maxHeaderBytes = 16 << 10
	// shutdownGrace is enough for a scrape to finish, but not for a profile.
	shutdownGrace = 2 * time.Second
)

// Serve serves HTTP on l with handler until ctx ends, gives open requests shutdownGrace to
// finish, and returns nil. It owns and closes l. If l fails earlier, it returns that
// error. When it returns, all connections are closed, and the contexts of unfinished
// requests have ended.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, log logrus.FieldLogger) error {
	return ServeTLS(ctx, l, nil, handler, log)
}

// ServeTLS is Serve over TLS with config, which must offer only HTTP/1.1. With nil it is
// Serve.
func ServeTLS(ctx context.Context, l net.Listener, config *tls.Config, handler http.Handler, log logrus.FieldLogger) error {
	bounded := &listener{
		Listener: l, ctx: ctx, slots: newSlots(),
		acceptor: admission.Acceptor{What: "connections for health, metrics and status", Log: log},
	}
	bounded.acceptor.MakeRoom = bounded.slots.MakeRoom
	server := &http.Server{
		Handler:   bounded.serving(handler),
		ConnState: bounded.connState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, below(c))
		},
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          logging.HTTPErrorLog(log),
	}
	var front net.Listener = bounded
	if config != nil {
		front = tls.NewListener(bounded, config)
	}
	var failed error
	served := make(chan struct{})
	go func() { defer close(served); failed = server.Serve(front) }()
	select {
	case <-served:
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		_ = server.Close() // connections that are still open
		return failed
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close() // cut off what did not finish in time
	}
	<-served
	return nil
}
