package hosted

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/kubeapi"
)

const (
	// rereadEvery is the pause between two looks at the kubeconfig's files, for
	// changes, while the API is used.
	rereadEvery = 5 * time.Second

	// connectTime bounds reaching the API, unless a GET may take longer.
	connectTime = 3 * time.Second

	// pingAfter and pingTime serve to notice that an API server has vanished
	// during a watch.
	pingAfter = 15 * time.Second
	pingTime  = 10 * time.Second
)

func isStatus(err error, codes ...int) bool {
	refused, ok := errors.AsType[*kubeapi.Error](err)
	return ok && slices.Contains(codes, refused.Code)
}

// configError says that there is no kubeconfig to use yet.
type configError struct{ err error }

func (e *configError) Error() string { return "the kubeconfig cannot be used: " + e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// client uses the API as the present kubeconfig says.
type client struct {
	path  string
	proxy func(*url.URL) (*url.URL, error) // the environment's
	log   logrus.FieldLogger

	connectTime time.Duration

	mu     sync.Mutex
	access *access   // nil: there is none yet
	read   time.Time // when the files were compared last, while there is an access
	fault  string    // their error, as logged last; "" if there is none
}

// current returns what to use now; it is another one once the kubeconfig has changed. A
// broken new kubeconfig leaves the old one in use.
func (c *client) current() (*access, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) < rereadEvery {
		return c.access, nil
	}
	fresh, err := load(c.path)
	other := err == nil && (c.access == nil || c.access.digest != fresh.digest)
	if other {
		err = c.connect(fresh)
	}
	c.note(err)
	if err != nil && c.access == nil {
		return nil, &configError{err}
	}
	c.read = time.Now()
	if other && err == nil {
		c.closeIdle()
		c.access = fresh
	}
	return c.access, nil
}

// inUse is current; nil: there is none.
func (c *client) inUse() *access {
	access, _ := c.current()
	return access
}

// note logs the kubeconfig's error when it appears, changes or goes. The caller holds
// mu.
func (c *client) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == c.fault {
		return
	}
	c.fault = text
	switch {
	case err == nil:
		c.log.Info("the kubeconfig of the hosted cluster is in place")
	case c.access == nil:
		c.log.WithError(err).Warn("the kubeconfig of the hosted cluster cannot be used; waiting for a good one")
	default:
		c.log.WithError(err).Warn("the changed kubeconfig of the hosted cluster cannot be used; the old one stays in use")
	}
}

// connect gives an access its client. It uses no network.
func (c *client) connect(a *access) (err error) {
	a.trip = &http.Transport{
		TLSClientConfig:       a.secure,
		Proxy:                 func(r *http.Request) (*url.URL, error) { return c.proxy(r.URL) },
		DialContext:           (&net.Dialer{Timeout: c.connectTime}).DialContext,
		TLSHandshakeTimeout:   c.connectTime,
		ResponseHeaderTimeout: listTime,
		ForceAttemptHTTP2:     true, // the watch and GETs share one connection
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTime},
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       time.Minute,
		WriteBufferSize:       1 << 10, // requests are short
	}
	if a.proxy != nil {
		a.trip.Proxy = http.ProxyURL(a.proxy)
	}
	a.services, err = a.NewServices(a.trip)
	return err
}

func (c *client) closeIdle() {
	if c.access != nil {
		c.access.trip.CloseIdleConnections()
	}
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIdle()
}

// get asks for one Service.
func (c *client) get(ctx context.Context, namespace, name string) (*kubeapi.Service, error) {
	access, err := c.current()
	if err != nil {
		return nil, err
	}
	return access.services.In(namespace).Get(ctx, name)
}
