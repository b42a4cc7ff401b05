package observe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
)

const (
	// readHeaderTimeout is the suite's bound for handshakes: a client that has
	// not sent its request by then is cut off.
	readHeaderTimeout = 10 * time.Second
	// idleTimeout ends idle connections. It is longer than the intervals of
	// scrapers and probes, so theirs stay open.
	idleTimeout = 2 * time.Minute
	// maxHeaderBytes is ample for scrapers and probes.
	maxHeaderBytes = 16 << 10
	// shutdownGrace is enough for a scrape to finish, but not for a profile.
	shutdownGrace = 2 * time.Second
)

// Serve answers HTTP on l with handler until ctx ends, then gives open requests
// a moment to finish and returns nil. It owns l and closes it. If l fails
// earlier, it returns that error. When it returns, all connections are closed;
// a handler that had not finished has its request's context ended.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, log logrus.FieldLogger) error {
	return ServeTLS(ctx, l, nil, handler, log)
}

// ServeTLS is Serve over TLS, with a config that offers HTTP/1.1 alone; nil: it is
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
	served := make(chan error, 1)
	go func() { served <- server.Serve(front) }()
	select {
	case err := <-served:
		_ = server.Close() // connections that are still open
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close() // cut off what did not finish in time
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
