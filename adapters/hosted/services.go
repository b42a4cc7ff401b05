package hosted

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters/resolve"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/wait"
)

const (
	// defaultGetTime bounds one GET of a Service, so that while the API is
	// away, names that may not even be Services wait no longer.
	defaultGetTime = 1500 * time.Millisecond

	// keepFound and keepAbsent are how long the results of single GETs are
	// kept. ClusterIPs do not change while a Service lives.
	keepFound  = 30 * time.Second
	keepAbsent = 5 * time.Second

	// keepFailure is how long the API is not asked again after it could not be
	// reached, so that a burst of names waits only once.
	keepFailure = time.Second
)

// Options configures Services.
type Options struct {
	Kubeconfig string // path; need not exist yet

	// Proxy returns the proxy for requests to the API, as the environment has
	// it; nil means none. The kubeconfig's proxy-url wins.
	Proxy func(*url.URL) (*url.URL, error)

	// GetTime bounds one GET of a Service; 0 means 1.5 s.
	GetTime time.Duration

	Log logrus.FieldLogger
}

// Services knows the ClusterIPs of the hosted cluster's Services: from a watch
// if the API allows one, else from single GETs. It implements resolve.Services.
// Run keeps up the watch; without it there are only single GETs.
type Services struct {
	client  *client
	log     logrus.FieldLogger
	table   table
	flights *resolve.Flights[[]netip.Addr]
	wanted  chan struct{} // holds one token after the first request: a watch is worthwhile
	outage  outage

	look, lasts time.Duration // otherEvery and watchTime, but in tests
}

// addrsOf returns a Service's addresses: none if it is headless ("None") or an
// ExternalName.
func addrsOf(s *kubeapi.Service) []netip.Addr {
	var out []netip.Addr
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// New returns Services. It reads no file and sends no request yet.
func New(opt Options) *Services {
	if opt.Proxy == nil {
		opt.Proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
	}
	getTime := cmp.Or(opt.GetTime, defaultGetTime)
	s := &Services{
		client: &client{path: opt.Kubeconfig, proxy: opt.Proxy, log: opt.Log, connectTime: max(connectTime, getTime)},
		log:    opt.Log,
		wanted: make(chan struct{}, 1),
		outage: outage{log: opt.Log}, look: otherEvery, lasts: watchTime,
	}
	s.flights = resolve.NewFlights(getTime, s.get)
	return s
}

// ClusterIPs implements resolve.Services. namespace and name must be DNS
// labels. It takes at most Options.GetTime.
func (s *Services) ClusterIPs(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
	wait.Signal(s.wanted)
	key := namespace + "/" + name
	if addrs, current := s.table.get(key); current {
		if len(addrs) == 0 {
			return nil, resolve.NotFound(key)
		}
		return addrs, nil
	}
	addrs, _, left, err := s.flights.Do(ctx, key)
	if left {
		return nil, unavailable(key, err)
	}
	return addrs, err
}

func unavailable(key string, err error) error {
	why := "the hosted cluster's API cannot be asked for the Service"
	var config *configError
	switch {
	case errors.As(err, &config):
		why = "there is no kubeconfig that can be used to ask the hosted cluster's API for the Service"
	case isStatus(err, http.StatusUnauthorized, http.StatusForbidden):
		why = "the hosted cluster's API does not let this proxy look up the Service"
	}
	return resolve.Unavailable(key, why, err)
}

// get looks up one Service. While the API is away, what a watch saw last is
// better than nothing.
func (s *Services) get(ctx context.Context, f *resolve.Flight[[]netip.Addr]) ([]netip.Addr, time.Duration, error) {
	namespace, name := splitKey(f.Key)
	service, err := s.client.get(ctx, namespace, name)
	switch {
	case err == nil:
		s.outage.note(nil)
		if addrs := addrsOf(service); len(addrs) > 0 {
			return addrs, keepFound, nil
		}
		return nil, keepAbsent, resolve.NotFound(f.Key)
	case isStatus(err, http.StatusNotFound):
		s.outage.note(nil)
		return nil, keepAbsent, resolve.NotFound(f.Key)
	case errors.Is(err, context.Canceled): // all callers have left
		return nil, 0, unavailable(f.Key, err)
	}
	s.outage.note(err)
	if addrs, _ := s.table.get(f.Key); len(addrs) > 0 {
		return addrs, keepFailure, nil
	}
	return nil, keepFailure, unavailable(f.Key, err)
}

// Close ends lookups and closes connections. Run must have returned.
func (s *Services) Close() {
	s.flights.Close()
	s.client.close()
}
