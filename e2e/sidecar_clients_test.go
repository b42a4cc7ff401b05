package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

const slapdConf = `
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile %[1]s/slapd.pid
argsfile %[1]s/slapd.args
database mdb
suffix "dc=guest,dc=test"
rootdn "cn=admin,dc=guest,dc=test"
rootpw secret
directory %[1]s/db
`

const directoryLDIF = `dn: dc=guest,dc=test
objectClass: organization
objectClass: dcObject
o: guest
dc: guest

dn: cn=anna,dc=guest,dc=test
objectClass: person
cn: anna
sn: %s
`

// searchLDAP looks a person up in a real directory of the hosted cluster, with
// the real ldapsearch, by SOCKS5 and name.
func (d *deployment) searchLDAP(t *testing.T, socks *observed) {
	t.Helper()
	dir := openDir(t)
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "db"), 0o777),
		os.WriteFile(filepath.Join(dir, "slapd.conf"), fmt.Appendf(nil, slapdConf, dir), 0o644),
		os.WriteFile(filepath.Join(dir, "anna.ldif"), fmt.Appendf(nil, directoryLDIF, strings.Repeat("x", 20_000)), 0o644),
		os.WriteFile(filepath.Join(dir, "proxychains.conf"), fmt.Appendf(nil, "strict_chain\nquiet_mode\nproxy_dns\n[ProxyList]\nsocks5 127.0.0.1 %d\n", socks.Port), 0o644),
	} {
		testutil.NoError(t, err)
	}
	port := testutil.Reserved(t)
	address := net.JoinHostPort(d.hosted.ip, fmt.Sprint(port))
	p := external(t, "slapd", "-d", "0", "-f", filepath.Join(dir, "slapd.conf"), "-h", "ldap://"+address)
	testutil.NoError(t, suite.WaitListening(p, "tcp", address))
	bind := []string{"-x", "-D", "cn=admin,dc=guest,dc=test", "-w", "secret", "-H"}
	must(command(t, nil, "ldapadd", append(bind, "ldap://"+address, "-f", filepath.Join(dir, "anna.ldif"))...))(t)
	before := socks.dials(t, "tunnel")
	args := append([]string{"-f", filepath.Join(dir, "proxychains.conf"), "ldapsearch", "-LLL", "-o", "ldif-wrap=no"}, bind...)
	out, err := command(t, nil, "proxychains4", append(args, fmt.Sprintf("ldap://app.guest.test:%d", port), "-b", "dc=guest,dc=test", "(cn=anna)")...)
	testutil.Holds(t, err == nil && strings.Contains(out, "sn: "+strings.Repeat("x", 20_000)+"\n"),
		"ldapsearch: %.500q, %v", out, err)
	testutil.Equal(t, socks.dials(t, "tunnel"), before+1, "dials through the tunnel, with that of ldapsearch")
}

func TestSidecarCarriesLargeFetches(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	const size = 64 << 20
	dir := openDir(t)
	site, checkout := filepath.Join(dir, "site"), filepath.Join(dir, "checkout")
	git := func(args ...string) {
		must(command(t, nil, "git", append([]string{"-c", "user.name=e2e", "-c", "user.email=e2e@guest.test", "-c", "core.compression=0"}, args...)...))(t)
	}
	git("init", "-q", checkout)
	f := must(os.Create(filepath.Join(checkout, "big")))(t)
	testutil.Must(io.Copy(f, newPayload(4, size)))(t)
	f.Close()
	git("-C", checkout, "add", "big")
	git("-C", checkout, "commit", "-q", "-m", "big")
	git("clone", "-q", "--bare", checkout, site)
	git("-C", site, "update-server-info")
	port := siteAt(t, d.hosted.ip, nil, http.FileServer(http.Dir(dir)))
	web := d.sidecar(t, "konnectivity-https-proxy", d.env)
	socks := d.sidecar(t, "konnectivity-socks5-proxy", d.env, "--resolve-from-guest-cluster-dns")
	base := "http://app.guest.test:" + port

	check := func(what, path string) {
		f := must(os.Open(path))(t)
		defer f.Close()
		testutil.Equal(t, must(hashOf(f))(t), sum(4, size), "%s: the hash of the file", what)
	}
	byWget := filepath.Join(dir, "by-wget")
	must(command(t, proxied(nil, web), "wget", "-q", "-O", byWget, base+"/checkout/big"))(t)
	check("wget", byWget)
	for name, env := range map[string][]string{"HTTP": proxied(nil, web), "SOCKS5": proxied(socks, nil)} {
		clone := filepath.Join(dir, name)
		must(command(t, env, "git", "clone", "-q", base+"/site", clone))(t)
		check("git by "+name, filepath.Join(clone, "big"))
	}
}

const prometheusConf = `
global: {scrape_interval: 5s, scrape_timeout: 5s}
scrape_configs:
- job_name: guest
  proxy_url: socks5://%s
  static_configs: [{targets: ["app.guest.test:%s"]}]
- job_name: guest-http
  proxy_url: http://%s
  static_configs: [{targets: ["app.guest.test:%s"]}]
`

func TestSidecarForPrometheus(t *testing.T) {
	t.Parallel() // it waits for scrapes
	d := newDeployment(t)
	target := siteAt(t, d.hosted.ip, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for i := range 5_000 {
			fmt.Fprintf(w, "guest_series{i=\"%d\"} %d\n", i, i)
		}
	}))
	port := testutil.Reserved(t)
	s := d.sidecar(t, "konnectivity-socks5-proxy", d.env, "--resolve-from-guest-cluster-dns", fmt.Sprintf("--http-serving-port=%d", port))
	dir := openDir(t)
	conf := filepath.Join(dir, "prometheus.yml")
	testutil.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, prometheusConf, s.Address(), target, suite.Loopback(port), target), 0o644))
	listen := testutil.ReservedAddress(t)
	p := external(t, "prometheus", "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen, "--log.level=warn")
	testutil.NoError(t, suite.WaitReady(p, "http://"+listen+"/-/ready"))
	type found struct {
		Health, LastError string
		Labels            struct{ Job string }
	}
	eventually(t, patience, "both targets up", func() (bool, any) {
		var answer struct {
			Data struct{ ActiveTargets []found }
		}
		out, err := curl(t, "http://"+listen+"/api/v1/targets")
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		up := 0
		for _, target := range answer.Data.ActiveTargets {
			if target.Health == "up" {
				up++
			}
		}
		return err == nil && up == 2, fmt.Sprint(answer.Data.ActiveTargets, err)
	})
	eventually(t, patience, "every series by both proxies", func() (bool, any) {
		out, err := curl(t, "-G", "--data-urlencode", "query=count by (job) (guest_series)", "http://"+listen+"/api/v1/query")
		return err == nil && strings.Count(string(out), `"5000"`) == 2, fmt.Sprintf("%.500s, %v", out, err)
	})
}

// both is a sidecar with both fronts on one port.
func both(t *testing.T, d *deployment) *observed {
	t.Helper()
	port := testutil.Reserved(t)
	o := &observed{&suite.Sidecar{Port: port}, testutil.ReservedAddress(t)}
	args := append(d.sidecarArgs(d.server.ClientPort), fmt.Sprintf("--serving-port=%d", port), fmt.Sprintf("--socks5-serving-port=%d", port),
		"--resolve-from-guest-cluster-dns", "--health-address="+o.health)
	o.Process = must(d.Run("konnectivity-https-proxy", d.env, args...))(t)
	testutil.NoError(t, suite.WaitListening(o.Process, "tcp", o.Address()))
	return o
}

// Every kind of client on one port, each told apart by what it says first.
func TestSidecarServesAllOnOnePort(t *testing.T) {
	d := newDeployment(t)
	s := both(t, d)
	plain, secure := "http://app.guest.test:"+d.web.plain+"/", "https://app.guest.test:"+d.web.secure+"/"
	for i, args := range [][]string{
		{"--proxy", "socks5h://" + s.Address(), plain},
		{"--proxy", "socks5h://" + s.Address(), secure},
		{"--proxy", "http://" + s.Address(), plain},
		{"--proxy", "http://" + s.Address(), secure},
		{"--proxy", "http://" + s.Address(), "--http1.0", plain},
		{"--proxy", "http://" + s.Address(), "--proxytunnel", plain},
		{"--proxy1.0", s.Address(), "--proxytunnel", plain},
		{"--proxy1.0", s.Address(), secure},
		{"--proxy", "http://" + s.Address(), "--http2", secure},
		{"--proxy", "http://" + s.Address(), "--http2-prior-knowledge", "--proxytunnel", "--http1.1", plain},
	} {
		path := fmt.Sprint(i)
		args[len(args)-1] += path
		wantHello(t, path, string(must(curl(t, append([]string{"--cacert", d.web.ca}, args...)...))(t)))
	}
	for _, version := range []string{"4", "4a"} {
		testutil.Fails(t, testutil.Err(curl(t, "--socks"+version, s.Address(), "http://127.0.0.1:"+d.web.plain)),
			"SOCKS%s", version)
	}
}
