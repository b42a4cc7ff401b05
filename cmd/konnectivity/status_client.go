package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/printable"
	"konnectivity/tunnel"
)

const (
	// adminTime bounds a question; a healthy process answers in milliseconds.
	adminTime = 10 * time.Second

	// summedFailures are looked at to say what fails, however few are shown; a
	// process keeps no more.
	summedFailures = 200

	// maxAnswer is above any answer that the API gives.
	maxAnswer = 8 << 20
)

// report is what one process says of itself.
type report struct {
	Address     string             `json:"address"`
	Error       string             `json:"error,omitempty"`    // why it says nothing
	Troubles    []string           `json:"troubles,omitempty"` // what to look at first, in words
	Status      admin.Status       `json:"status"`
	Peers       []admin.Peer       `json:"peers"`
	Connections []admin.Connection `json:"connections"`
	Matched     int                `json:"connectionsMatched"`
	Failures    []admin.Failure    `json:"failures"`
}

// adminClient asks admin APIs.
type adminClient struct{ http *http.Client }

func newAdminClient() *adminClient {
	return &adminClient{&http.Client{Timeout: adminTime, Transport: &http.Transport{}}} // never by the environment's proxy
}

func (c *adminClient) close() { c.http.CloseIdleConnections() }

// reports asks all addresses at once, so that one that hangs does not keep the
// others waiting.
func (c *adminClient) reports(ctx context.Context, addresses []string, filter string, limit int) []report {
	out := make([]report, len(addresses))
	var asking sync.WaitGroup
	for i, a := range addresses {
		asking.Go(func() {
			out[i] = report{Address: a}
			if err := c.report(ctx, &out[i], filter, limit); err != nil {
				out[i] = report{Address: a, Error: printable.Text(err.Error())}
			}
		})
	}
	asking.Wait()
	return out
}

func (c *adminClient) report(ctx context.Context, r *report, filter string, limit int) error {
	q := url.Values{"filter": {filter}, "limit": {strconv.Itoa(limit)}}
	if err := c.get(ctx, r.Address, "status", nil, &r.Status); err != nil {
		return err
	}
	var peers admin.Page[admin.Peer]
	var conns admin.Page[admin.Connection]
	var failures admin.Page[admin.Failure]
	q.Set("sort", "-rate")
	if err := c.get(ctx, r.Address, "peers", q, &peers); err != nil {
		return err
	}
	q.Set("sort", "-state")
	if err := c.get(ctx, r.Address, "connections", q, &conns); err != nil {
		return err
	}
	q.Set("limit", strconv.Itoa(max(limit, summedFailures)))
	if err := c.get(ctx, r.Address, "failures", q, &failures); err != nil {
		return err
	}
	r.Peers, r.Connections, r.Matched, r.Failures = peers.Items, conns.Items, conns.Matched, failures.Items
	r.Troubles = troubles(*r)
	r.Failures = r.Failures[:min(limit, len(r.Failures))]
	return nil
}

// get asks one resource. The error is a sentence without the address.
func (c *adminClient) get(ctx context.Context, address, name string, q url.Values, to any) error {
	u := url.URL{Scheme: "http", Host: address, Path: "/api/" + admin.Version + "/" + name, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if failure := tunnel.FailureOf(err); failure != tunnel.FailInternal && failure != tunnel.FailReset {
			return fmt.Errorf("no answer from the admin API: %s", failure)
		}
		return fmt.Errorf("%s answers there, which is no admin API", whatSpeaks(ctx, address).who)
	}
	defer res.Body.Close()
	body := io.LimitReader(res.Body, maxAnswer)
	if res.StatusCode == http.StatusNotFound {
		return fmt.Errorf("it has no admin API: it is another program, an older version, or another of its ports")
	}
	if res.StatusCode != http.StatusOK {
		var refusal struct{ Error string }
		_ = json.NewDecoder(body).Decode(&refusal)
		return fmt.Errorf("the admin API answers %s %s", res.Status, refusal.Error)
	}
	if err := json.NewDecoder(body).Decode(to); err != nil {
		return fmt.Errorf("the answer is not the admin API's: %w", err)
	}
	printable.All(to) // names are what peers call themselves
	return nil
}

// connection finds one by its id; nil if it is not open there.
func (c *adminClient) connection(ctx context.Context, address, id string) (*admin.Connection, error) {
	var page admin.Page[admin.Connection]
	if err := c.get(ctx, address, "connections", url.Values{"filter": {id}}, &page); err != nil {
		return nil, err
	}
	for i := range page.Items {
		if page.Items[i].ID == id {
			return &page.Items[i], nil
		}
	}
	return nil, nil
}
