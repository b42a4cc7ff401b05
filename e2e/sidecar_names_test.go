package e2e

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// deemedDown is the sidecar's verdict on the tunnel.
func (o *observed) deemedDown(t testing.TB) bool {
	t.Helper()
	page := must(curl(t, "http://"+o.health+"/metrics"))(t)
	return bytes.Contains(page, []byte("\nkonnectivity_sidecar_tunnel_deemed_down 1\n"))
}

// Guest DNS knows names by aliases and in both cases; what it does not know
// does not exist, and that is no reason to doubt the tunnel.
func TestSidecarAsksGuestDNS(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "--cname=www.guest.test,alias.guest.test", "--cname=alias.guest.test,app.guest.test",
		"--host-record=two.guest.test,127.255.255.254", "--host-record=headless.apps.svc.cluster.local,127.255.255.254")
	d.hosted.api.set("apps", "headless", "None")
	s := d.sidecar(t, "konnectivity-socks5-proxy", d.env, "--resolve-from-guest-cluster-dns", "--resolve-from-management-cluster-dns")
	get := func(host string) (string, error) {
		return getBy("socks5://"+s.Address(), "http://"+host+":"+d.web.plain+"/"+host)
	}
	for _, host := range []string{"app.guest.test", "WWW.Guest.Test", "www.guest.test."} {
		eventually(t, 2*patience, host+" is found", func() (bool, any) {
			got, err := get(host)
			return err == nil && got == "hello /"+host, fmt.Sprint(got, err)
		})
	}
	for _, host := range []string{"no.guest.test", "no.invalid", "no-such-service.apps.svc"} {
		eventually(t, 2*patience, host+" does not exist", func() (bool, any) { // as above, the DNS may be late
			got, err := get(host)
			return err != nil && strings.Contains(err.Error(), "host unreachable"), fmt.Sprint(got, err)
		})
	}
	// A headless Service has no ClusterIP: its name is the DNS's to know.
	eventually(t, 2*patience, "the headless Service", func() (bool, any) {
		_, err := get("headless.apps.svc")
		return err != nil && strings.Contains(err.Error(), "refused"), err
	})
	// A DNS that this machine has left without a processor for 2 s is a reason:
	// such a verdict is taken back, and of some tries one is without.
	down := s.deemedDown(t)
	for range 3 {
		if !down {
			return
		}
		eventually(t, 2*patience, "the tunnel deemed down", func() (bool, any) { return !s.deemedDown(t), "down" })
		_, _ = get("no.guest.test")
		down = s.deemedDown(t)
	}
	testutil.Holds(t, !down, "names that do not exist took the tunnel down")
}

// The tunnel is frozen: within 2 s names and connections go direct, nobody
// waits again after that, and once it thaws all goes back.
func TestSidecarFallsBackAndReturns(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	tg := newTarget(t)
	_, port, _ := net.SplitHostPort(tg.plain.Listener.Addr().String())
	s := d.sidecar(t, "konnectivity-socks5-proxy", d.env, "--resolve-from-guest-cluster-dns", "--resolve-from-management-cluster-dns")
	get := func() error {
		_, err := getBy("socks5://"+s.Address(), "http://localhost:"+port+"/1/1000") // guest DNS does not know it
		return err
	}
	eventually(t, 2*patience, "the tunnel up", func() (bool, any) {
		err := get()
		return err == nil && !s.deemedDown(t), err
	})
	before := s.dials(t, "fallback")
	testutil.NoError(t, d.agent.Signal(suite.Freeze))
	time.Sleep(6 * time.Second) // the DNS connection that is kept, and the name's absence, expire
	took := stopwatch(d.Suite)
	testutil.Succeeds(t, get(), "with the tunnel frozen")
	testutil.AtMost(t, took(), 7*time.Second, "the time of the verdict") // it is due in 2 s; a dial is given up much later
	if !s.deemedDown(t) || s.dials(t, "fallback") != before+1 {
		t.Errorf("deemed down %v, %v dials by fallback", s.deemedDown(t), s.dials(t, "fallback"))
	}
	took = stopwatch(d.Suite)
	for range 20 {
		testutil.Succeeds(t, get(), "while the tunnel is deemed down")
	}
	testutil.AtMost(t, took(), 10*time.Second, "the time of 20 requests while it is down") // a verdict each would take 40 s
	testutil.NoError(t, d.agent.Signal(suite.Thaw))
	eventually(t, 2*patience, "the tunnel deemed down", func() (bool, any) { return !s.deemedDown(t), "down" })
	wantHello(t, "back", must(fetch(t, d.web.ca, proxied(s, nil), "https://app.guest.test:"+d.web.secure+"/back"))(t))
}
