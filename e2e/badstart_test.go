package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that cannot start says why in one line, with exit status 1, or 2
// where the command line alone shows it, and serves nothing.
func TestProgramsThatCannotStart(t *testing.T) {
	s := newSuite(t)
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	good := map[string][]string{
		"konnectivity-server": {
			"--server-ca-cert=" + s.PKI("ca.crt"), "--server-cert=" + s.PKI("server.crt"), "--server-key=" + s.PKI("server.key"),
			"--cluster-ca-cert=" + s.PKI("ca.crt"), "--cluster-cert=" + s.PKI("cluster.crt"), "--cluster-key=" + s.PKI("cluster.key")},
		"konnectivity-agent":        {"--ca-cert=" + s.PKI("ca.crt"), "--agent-cert=" + s.PKI("agent.crt"), "--agent-key=" + s.PKI("agent.key")},
		"konnectivity-socks5-proxy": {"--ca-cert-path=" + s.PKI("ca.crt"), "--tls-cert-path=" + s.PKI("client.crt"), "--tls-key-path=" + s.PKI("client.key")},
		"konnectivity-https-proxy":  {"--ca-cert-path=" + s.PKI("ca.crt"), "--tls-cert-path=" + s.PKI("client.crt"), "--tls-key-path=" + s.PKI("client.key")},
	}
	ports := map[string][]string{
		"konnectivity-server":       {"--server-port", "--agent-port", "--health-port", "--admin-port"},
		"konnectivity-agent":        {"--health-server-port", "--admin-server-port"},
		"konnectivity-socks5-proxy": {"--serving-port", "--http-serving-port"},
		"konnectivity-https-proxy":  {"--serving-port", "--socks5-serving-port"},
	}
	type bad struct {
		program string
		args    []string
		status  int
		says    string
	}
	var all []bad
	for program, flags := range ports {
		for _, flag := range flags {
			args := append([]string{}, good[program]...)
			for _, other := range flags {
				args = append(args, other+"="+anyPort(t))
			}
			all = append(all, bad{program, append(args, flag+"="+port), 1, "address already in use"})
		}
		all = append(all,
			bad{program, append(good[program], "--no-such-flag"), 2, "--no-such-flag"},
			bad{program, append(good[program], "stray"), 2, "stray"},
			bad{program, append(good[program], "--link=maybe"), 2, "maybe"},
			bad{program, append(good[program], "--log-level=loud"), 2, "loud"},
			bad{program, append(good[program], flags[0]+"=70000"), 2, "70000"},
		)
	}
	missing := filepath.Join(s.Dir, "missing.pem")
	for _, flag := range []string{"--server-cert", "--server-key", "--server-ca-cert", "--cluster-cert", "--cluster-key", "--cluster-ca-cert", "--kubeconfig"} {
		all = append(all, bad{"konnectivity-server", append(good["konnectivity-server"], flag+"="+missing), 1, missing})
	}
	for _, flag := range []string{"--agent-cert", "--agent-key", "--ca-cert", "--service-account-token-path"} {
		all = append(all, bad{"konnectivity-agent", append(good["konnectivity-agent"], flag+"="+missing), 1, missing})
	}
	all = append(all,
		bad{"konnectivity-server", nil, 2, "--server-cert"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--server-key="+s.PKI("client.key")), 1, "does not match"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--cluster-key="+s.PKI("client.key")), 1, "does not match"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--server-ca-cert="), 2, "--server-ca-cert"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--cluster-ca-cert="), 2, "authentication"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--enable-contention-profiling"), 2, "--enable-profiling"},
		bad{"konnectivity-server", append(good["konnectivity-server"], "--agent-namespace=x"), 2, "exclude"},
		bad{"konnectivity-agent", append(good["konnectivity-agent"], "--agent-key="+s.PKI("client.key")), 1, "does not match"},
		bad{"konnectivity-agent", append(good["konnectivity-agent"], "--agent-key="), 2, "--agent-key"},
		bad{"konnectivity-agent", append(good["konnectivity-agent"], "--sync-interval=1m"), 2, "--sync-interval-cap"},
		bad{"konnectivity-agent", append(good["konnectivity-agent"], "--agent-identifiers=%zz"), 2, "--agent-identifiers"},
		bad{"konnectivity-https-proxy", append(good["konnectivity-https-proxy"], "--http-proxy=:::"), 2, "--http-proxy"},
		bad{"konnectivity-socks5-proxy", append(good["konnectivity-socks5-proxy"], "--serving-address=nonsense"), 2, "--serving-address"},
		bad{"konnectivity", []string{"nonsense"}, 2, "nonsense"},
		bad{"konnectivity", []string{"certs"}, 2, "arg"},
		bad{"konnectivity", []string{"bench", "--via=nonsense"}, 2, "nonsense"},
	)
	for _, b := range all {
		t.Run(b.program+" "+b.says, func(t *testing.T) {
			p := must(s.Run(b.program, nil, b.args...))(t)
			code, err := p.Wait(patience)
			out := p.Output()
			if err != nil || code != b.status || !strings.Contains(out, b.says) {
				t.Errorf("%q: status %d, %v; want %d and %q in\n%s", b.args, code, err, b.status, b.says, out)
			}
			if strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, b.program+": ") {
				t.Errorf("%q: want one line that begins with the program's name, got\n%s", b.args, out)
			}
		})
	}
}

// A sidecar is often started before its files are there: it says so, serves,
// and works once they are.
func TestSidecarWaitsForItsFiles(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	late := filepath.Join(w.Dir, "late")
	if err := os.Mkdir(late, 0o755); err != nil {
		t.Fatal(err)
	}
	socks := must(w.StartSOCKS5(w.server, "--ca-cert-path="+late+"/ca.crt", "--tls-cert-path="+late+"/client.crt", "--tls-key-path="+late+"/client.key"))(t)
	if o := echoOnce(viaSOCKS5(socks.Address()), "127.0.0.1:1"); o.err == nil {
		t.Error("a connection without certificates succeeded")
	}
	logged(t, socks.Process, patience, late)
	for _, name := range []string{"client.key", "client.crt", "ca.crt"} {
		if err := os.WriteFile(filepath.Join(late, name), must(os.ReadFile(w.PKI(name)))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, patience, "the sidecar works", func() (bool, any) {
		_, err := curl(t, "--socks5-hostname", socks.Address(), w.target.plain.URL+"/1/10")
		return err == nil, err
	})
}

func TestCerts(t *testing.T) {
	s := newSuite(t) // has run it once
	for _, name := range []string{"ca", "server", "cluster", "client", "agent"} {
		if mode := must(os.Stat(s.PKI(name + ".key")))(t).Mode(); mode != 0o600 {
			t.Errorf("%s.key has mode %v", name, mode)
		}
	}
	before := must(os.ReadFile(s.PKI("ca.crt")))(t)
	out, err := exec.Command(s.Bin.Path("konnectivity"), "certs", s.PKI("")).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "exists already") {
		t.Errorf("over an existing directory: %v\n%s", err, out)
	}
	if string(must(os.ReadFile(s.PKI("ca.crt")))(t)) != string(before) {
		t.Error("ca.crt was overwritten")
	}
}
