package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

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
		res, err := clientBy("socks5://" + s.Address()).Get("http://" + host + ":" + d.web.plain + "/" + host)
		if err != nil {
			return "", err
		}
		return readAnswer(res)
	}
	for _, host := range []string{"app.guest.test", "WWW.Guest.Test", "www.guest.test."} {
		eventually(t, 2*patience, host+" is found", func() (bool, any) {
			got, err := get(host)
			return err == nil && got == "hello /"+host, fmt.Sprint(got, err)
		})
	}
	for _, host := range []string{"no.guest.test", "no.invalid", "no-such-service.apps.svc"} {
		if got, err := get(host); err == nil || !strings.Contains(err.Error(), "host unreachable") {
			t.Errorf("%s: %q, %v; want the reply for no such host", host, got, err)
		}
	}
	// A headless Service has no ClusterIP: its name is the DNS's to know.
	if _, err := get("headless.apps.svc"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the headless Service: %v", err)
	}
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
	if down {
		t.Error("names that do not exist took the tunnel down")
	}
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
		res, err := clientBy("socks5://" + s.Address()).Get("http://localhost:" + port + "/1/1000") // guest DNS does not know it
		if err == nil {
			_, err = readAnswer(res)
		}
		return err
	}
	eventually(t, 2*patience, "the tunnel up", func() (bool, any) {
		err := get()
		return err == nil && !s.deemedDown(t), err
	})
	before := s.dials(t, "fallback")
	if err := d.agent.Signal(suite.Freeze); err != nil {
		t.Fatal(err)
	}
	time.Sleep(6 * time.Second) // the DNS connection that is kept, and the name's absence, expire
	took := stopwatch(d.Suite)
	if err := get(); err != nil {
		t.Errorf("with the tunnel frozen: %v", err)
	}
	if took := took(); took > 7*time.Second { // the verdict is due in 2 s, a dial is given up after 10 s
		t.Errorf("the verdict took %v", took)
	}
	if !s.deemedDown(t) || s.dials(t, "fallback") != before+1 {
		t.Errorf("deemed down %v, %v dials by fallback", s.deemedDown(t), s.dials(t, "fallback"))
	}
	took = stopwatch(d.Suite)
	for range 20 {
		if err := get(); err != nil {
			t.Error(err)
		}
	}
	if took := took(); took > 10*time.Second { // a verdict each would take 40 s
		t.Errorf("20 requests while it is down took %v", took)
	}
	if err := d.agent.Signal(suite.Thaw); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*patience, "the tunnel deemed down", func() (bool, any) { return !s.deemedDown(t), "down" })
	got, err := fetch(t, d.web.ca, proxied(s, nil), "https://app.guest.test:"+d.web.secure+"/back")
	wantHello(t, "back", got, err)
}

// A DNS that has gone bad costs its names, quickly and clearly, and nothing
// else.
func TestSidecarAndABadDNS(t *testing.T) {
	t.Parallel()
	w := newTunnel(t)
	for name, c := range map[string]struct {
		answer func(q dnsmessage.Question, id uint16) []byte
		ok     bool
	}{
		"garbage": {func(dnsmessage.Question, uint16) []byte { return bytes.Repeat([]byte{0xc0}, 600) }, false},
		"empty":   {func(dnsmessage.Question, uint16) []byte { return nil }, false},
		"silence": {nil, false},
		"other name": {func(_ dnsmessage.Question, id uint16) []byte {
			return dnsAnswer(id, "evil.test.", dnsmessage.TypeA, nil)
		}, false},
		"CNAME loop":   {aliases("loop.test.", "pool.test.", "loop.test."), false},
		"CNAME chain":  {aliases(chainOf(40)...), false},
		"1000 dead":    {addresses(1000, false), false},
		"1000, 2 live": {addresses(1000, true), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &hostedCluster{dir: openDir(t), ip: fakeDNS(t, c.answer)}
			h.kubeconfig = filepath.Join(h.dir, "kubeconfig")
			h.api = startAPI(t, loopbackIP()+":0")
			h.api.set("openshift-dns", "dns-default", h.ip)
			h.api.writeKubeconfig(t, h.kubeconfig)
			site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello /x") }))
			t.Cleanup(site.Close)
			_, port, _ := net.SplitHostPort(site.Listener.Addr().String())
			s := w.sidecar(t, "konnectivity-https-proxy", []string{"KUBECONFIG=" + h.kubeconfig})
			defer s.Kill()
			took := stopwatch(w.Suite)
			got, err := curl(t, "--proxy", "http://"+s.Address(), "http://loop.test:"+port+"/x")
			if c.ok {
				wantHello(t, "x", string(got), err)
			} else if err == nil || !strings.Contains(err.Error(), "50") {
				t.Errorf("%q, %v; want 502, 503 or 504", got, err)
			}
			if took := took(); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			got, err = curl(t, "--proxy", "http://"+s.Address(), "http://127.0.0.1:"+port+"/x")
			wantHello(t, "x", string(got), err)
		})
	}
}

// fakeDNS serves DNS over TCP; answer nil never answers.
func fakeDNS(t *testing.T, answer func(dnsmessage.Question, uint16) []byte) (ip string) {
	t.Helper()
	ip = loopbackIP()
	testutil.ServeAt(t, ip+":53", func(c *net.TCPConn) {
		for {
			var size [2]byte
			if _, err := io.ReadFull(c, size[:]); err != nil {
				return
			}
			msg := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(c, msg); err != nil {
				return
			}
			var p dnsmessage.Parser
			head, err := p.Start(msg)
			if err != nil || answer == nil {
				continue
			}
			q, _ := p.Question()
			out := answer(q, head.ID)
			if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
				return
			}
		}
	})
	return ip
}

// dnsAnswer is a response about name with what add puts into it.
func dnsAnswer(id uint16, name string, kind dnsmessage.Type, add func(*dnsmessage.Builder)) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true})
	b.EnableCompression()
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET})
	_ = b.StartAnswers()
	if add != nil {
		add(&b)
	}
	msg, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return msg
}

func header(name string) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 60}
}

// aliases is a chain from the first name to the last.
func aliases(names ...string) func(dnsmessage.Question, uint16) []byte {
	return func(q dnsmessage.Question, id uint16) []byte {
		return dnsAnswer(id, q.Name.String(), q.Type, func(b *dnsmessage.Builder) {
			for i := range names[1:] {
				_ = b.CNAMEResource(header(names[i]), dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(names[i+1])})
			}
		})
	}
}

func chainOf(n int) []string {
	names := []string{"loop.test."}
	for i := range n {
		names = append(names, fmt.Sprintf("n%d.test.", i))
	}
	return names
}

// addresses are n of them where nothing listens; with live, the second one is
// this machine's.
func addresses(n int, live bool) func(dnsmessage.Question, uint16) []byte {
	return func(q dnsmessage.Question, id uint16) []byte {
		return dnsAnswer(id, q.Name.String(), q.Type, func(b *dnsmessage.Builder) {
			for i := range n {
				a := [4]byte{127, 254, byte(i >> 8), byte(i)}
				if live && i == 1 {
					a = [4]byte{127, 0, 0, 1}
				}
				if q.Type == dnsmessage.TypeA {
					_ = b.AResource(header(q.Name.String()), dnsmessage.AResource{A: a})
				}
			}
		})
	}
}
