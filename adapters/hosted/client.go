package hosted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
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

	// maxErrorBody is how much of a refusal is read, to reuse the connection.
	maxErrorBody = 64 << 10
)

// statusError is a refusal by the API.
type statusError struct{ code int }

func (e *statusError) Error() string {
	return fmt.Sprintf("the hosted cluster's API answered %d %s", e.code, http.StatusText(e.code))
}

func isStatus(err error, codes ...int) bool {
	var status *statusError
	return errors.As(err, &status) && slices.Contains(codes, status.code)
}

// configError says that there is no kubeconfig to use yet.
type configError struct{ err error }

func (e *configError) Error() string { return "the kubeconfig cannot be used: " + e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// client uses the API as the present kubeconfig says.
type client struct {
	path  string
	proxy func(*url.URL) (*url.URL, error) // the environment's
	agent string
	log   logrus.FieldLogger

	connectTime time.Duration

	mu     sync.Mutex
	access *access   // nil: there is none yet
	read   time.Time // when the files were compared last
	fault  string    // their error, as logged last; "" if there is none
}

// current returns what to use now; it is another one once the kubeconfig has changed. A
// broken new kubeconfig leaves the old one in use.
func (c *client) current() (*access, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.access != nil && time.Since(c.read) < rereadEvery {
		return c.access, nil
	}
	fresh, err := load(c.path)
	c.note(err)
	if err != nil && c.access == nil {
		return nil, &configError{err}
	}
	c.read = time.Now()
	if err != nil {
		return c.access, nil
	}
	if c.access == nil || c.access.digest != fresh.digest {
		c.closeIdle()
		fresh.http = c.newHTTP(fresh)
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

func (c *client) newHTTP(a *access) *http.Client {
	proxy := func(r *http.Request) (*url.URL, error) { return c.proxy(r.URL) }
	if a.proxy != nil {
		proxy = http.ProxyURL(a.proxy)
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                 proxy,
			DialContext:           (&net.Dialer{Timeout: c.connectTime}).DialContext,
			TLSClientConfig:       a.tls,
			TLSHandshakeTimeout:   c.connectTime,
			ResponseHeaderTimeout: listTime,
			ForceAttemptHTTP2:     true, // the watch and GETs share one connection
			HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTime},
			MaxIdleConnsPerHost:   2,
			IdleConnTimeout:       time.Minute,
			WriteBufferSize:       1 << 10, // requests are short
		},
	}
}

func (c *client) closeIdle() {
	if c.access != nil {
		c.access.http.CloseIdleConnections()
	}
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIdle()
}

// get requests path and returns the body of a 200, which the caller must close.
func (c *client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	access, err := c.current()
	if err != nil {
		return nil, err
	}
	u := access.server.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.agent)
	switch {
	case access.token != "":
		req.Header.Set("Authorization", "Bearer "+access.token)
	case access.username != "":
		req.SetBasicAuth(access.username, access.password)
	}
	res, err := access.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, res.Body, maxErrorBody)
		res.Body.Close()
		return nil, &statusError{res.StatusCode}
	}
	return res.Body, nil
}

// getJSON reads a whole answer of at most limit bytes into out.
func (c *client) getJSON(ctx context.Context, path string, query url.Values, limit int64, out any) error {
	body, err := c.get(ctx, path, query)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, limit)).Decode(out); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	_, _ = io.CopyN(io.Discard, body, 1) // read up to EOF, so that the connection is reused
	return nil
}
