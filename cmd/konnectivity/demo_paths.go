package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
)

// pathCheck is the outcome of a request over one path of the demo.
type pathCheck struct {
	Path         string  `json:"path"`
	Error        string  `json:"error,omitempty"`
	Milliseconds float64 `json:"milliseconds"`
	Try          string  `json:"try,omitempty"` // a command line
}

const (
	demoCheckTime = 10 * time.Second // for one request; a healthy one takes milliseconds
	demoReadyTime = 10 * time.Second // until the agent is connected
)

// demoPath is one path through the suite.
type demoPath struct {
	pathCheck
	url       string
	transport *http.Transport
}

// check waits until the suite is up and sends one request over each path.
func (d *demo) check(ctx context.Context) (checks []pathCheck) {
	d.waitReady(ctx)
	for _, p := range d.paths {
		start := time.Now()
		if err := p.get(ctx); err != nil {
			p.Error = err.Error()
		}
		p.Milliseconds = status.Milliseconds(time.Since(start))
		checks = append(checks, p.pathCheck)
	}
	return checks
}

// get sends one request and checks the answer.
func (p demoPath) get(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoCheckTime)
	defer cancel()
	defer p.transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	res, err := p.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || string(body) != demoGreeting {
		return fmt.Errorf("the target's answer did not arrive: %s, %q", res.Status, body)
	}
	return nil
}
