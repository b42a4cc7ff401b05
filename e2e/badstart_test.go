package e2e

import (
	"net"
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
			"--cluster-ca-cert=" + s.PKI("ca.crt"), "--cluster-cert=" + s.PKI("cluster.crt"), "--cluster-key=" + s.PKI("cluster.key"),
			"--server-port=" + anyPort(t), "--health-port=" + anyPort(t), "--admin-port=" + anyPort(t)},
		"konnectivity-agent":        {"--ca-cert=" + s.PKI("ca.crt"), "--agent-cert=" + s.PKI("agent.crt"), "--agent-key=" + s.PKI("agent.key"), "--health-server-port=" + anyPort(t)},
		"konnectivity-socks5-proxy": {"--ca-cert-path=" + s.PKI("ca.crt"), "--tls-cert-path=" + s.PKI("client.crt"), "--tls-key-path=" + s.PKI("client.key")},
		"konnectivity-https-proxy":  {"--ca-cert-path=" + s.PKI("ca.crt"), "--tls-cert-path=" + s.PKI("client.crt"), "--tls-key-path=" + s.PKI("client.key")},
	}
	type bad struct {
		program string
		args    []string
		status  int
		says    string
	}
	all := []bad{{"konnectivity", []string{"nonsense"}, 2, "nonsense"}}
	for program, flag := range map[string]string{
		"konnectivity-server": "--agent-port", "konnectivity-agent": "--admin-server-port",
		"konnectivity-socks5-proxy": "--serving-port", "konnectivity-https-proxy": "--serving-port",
	} {
		with := func(more ...string) []string {
			return append(good[program][:len(good[program]):len(good[program])], more...)
		}
		all = append(all,
			bad{program, with("--no-such-flag"), 2, "--no-such-flag"},
			bad{program, with(flag + "=" + port), 1, "address already in use"},
		)
	}
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
