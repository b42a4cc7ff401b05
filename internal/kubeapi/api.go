package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// maxObject bounds an object, which etcd bounds to 1.5 MiB. maxPage bounds a page of them.
	maxObject = 8 << 20
	maxPage   = pageSize * 2 << 20

	// maxRefusal bounds what is read of an answer that is an error.
	maxRefusal = 64 << 10
)

// api is an API server. It may be used from any goroutine.
type api struct {
	http *http.Client
	base *url.URL
	pace flowcontrol.RateLimiter
}

// newAPI returns the API server of config, which it does not modify. It uses no network.
func newAPI(config *rest.Config) (*api, error) {
	own := rest.CopyConfig(config)
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	base, _, err := rest.DefaultServerUrlFor(own)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return &api{client, base, paceOf(own)}, nil
}

// paceOf is the pace that client-go's own clients keep to.
func paceOf(config *rest.Config) flowcontrol.RateLimiter {
	if config.QPS < 0 {
		return flowcontrol.NewFakeAlwaysRateLimiter()
	}
	qps, burst := config.QPS, config.Burst
	if qps == 0 {
		qps = rest.DefaultQPS
	}
	if burst == 0 {
		burst = rest.DefaultBurst
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// request is a request in JSON.
type request struct {
	method, path string
	query        url.Values
	accept       string // "": JSON
	body         any    // nil: none
	retries      int    // how often to ask again where the API says when
}

// send returns a successful answer, which the caller closes. A refusal is an
// apierrors.APIStatus.
func (a *api) send(ctx context.Context, r request) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}
	at := a.base.JoinPath(r.path)
	at.RawQuery = r.query.Encode()
	for {
		if err := a.pace.Wait(ctx); err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, r.method, at.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", r.accept)
		if r.accept == "" {
			req.Header.Set("Accept", "application/json")
		}
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := a.http.Do(req)
		if err != nil || resp.StatusCode >= 200 && resp.StatusCode <= 206 {
			return resp, err
		}
		pause, again := retryAfter(resp)
		err = refusal(r, resp, pause)
		if !again || r.retries == 0 {
			return nil, err
		}
		r.retries--
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// retryAfter is after which time the API wants to be asked again, if it does.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500 {
		return 0, false
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	return time.Duration(seconds) * time.Second, err == nil && seconds >= 0
}

// refusal is the error that an answer states, and closes it.
func refusal(r request, resp *http.Response, pause time.Duration) error {
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	var status metav1.Status
	if err == nil && json.Unmarshal(text, &status) == nil && status.Kind == "Status" && status.Status != metav1.StatusSuccess {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, r.method, schema.GroupResource{Resource: r.path}, "", string(text), int(pause.Seconds()), true)
}

// call sends a request and decodes the answer, of at most most bytes, into out; nil: it is
// not looked at.
func (a *api) call(ctx context.Context, r request, out any, most int) error {
	resp, err := a.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(&answer{resp.Body, most, most}).Decode(out); err != nil {
		return fmt.Errorf("the API's answer: %w", err)
	}
	return nil
}

// errKind is about an object of another kind than was asked for.
var errKind = errors.New("the API sent another kind of object than was asked for")

// isOf is an error if an object is of another kind; "": it does not say.
func isOf(got, want string) error {
	if got != "" && got != want {
		return fmt.Errorf("%w: a %.100q, not a %s", errKind, got, want)
	}
	return nil
}
