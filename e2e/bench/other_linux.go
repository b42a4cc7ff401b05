package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"konnectivity/e2e/line"
	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// other is a tunnel that is not ours. Its folder has the programs near and far, one for
// each end of the line, and the file via. That says how clients ask for a destination,
// and where near listens for them, as in "socks5 127.0.0.1:1080".
type other struct {
	name, dir string
	greet     greeting
	front     string // host:port, or the name of a unix socket in FILES
}

// greetings are the words that via may begin with.
var greetings = map[string]greeting{
	"tcp": func(_ context.Context, c net.Conn, _ *tunnel.Flow) (tunnel.Conn, error) {
		return tunnel.Wrap(c), nil
	},
	"socks5": greetSOCKS5,
	"connect": func(ctx context.Context, c net.Conn, f *tunnel.Flow) (tunnel.Conn, error) {
		return connect.Handshake(ctx, tunnel.Wrap(c), connect.Request{Address: f.Address})
	},
}

// readOthers reads the folders of -other.
func readOthers(dirs []string) (all []other, err error) {
	taken := strings.Split(ownSubjects, ",")
	for _, dir := range dirs {
		o, err := readOther(dir)
		if err != nil {
			return nil, fmt.Errorf("-other: %w", err)
		}
		if slices.Contains(taken, o.name) {
			return nil, fmt.Errorf("-other: there is another %q: rename the folder %s", o.name, dir)
		}
		all, taken = append(all, o), append(taken, o.name)
	}
	return all, nil
}

func readOther(dir string) (o other, err error) {
	if o.dir, err = filepath.Abs(dir); err != nil {
		return o, err
	}
	o.name = filepath.Base(o.dir)
	for _, program := range []string{"near", "far"} {
		if _, err := exec.LookPath(filepath.Join(o.dir, program)); err != nil {
			return o, fmt.Errorf("want executables near and far: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(o.dir, "via"))
	if err != nil {
		return o, err
	}
	words := strings.Fields(string(text))
	if len(words) != 2 || greetings[words[0]] == nil {
		return o, fmt.Errorf("%s/via is %q: want tcp, socks5 or connect, and where near listens for clients, as in: socks5 127.0.0.1:1080",
			o.dir, strings.TrimSpace(string(text)))
	}
	o.greet, o.front = greetings[words[0]], words[1]
	return o, nil
}

// startOther runs one with certificates of its own, whatever the leg.
func (m *measurement) startOther(ctx context.Context, bin suite.Binaries, o other, target string) (bench.Path, error) {
	w, err := m.newWorld(bin)
	if err != nil {
		return bench.Path{}, err
	}
	return o.start(ctx, w.Suite, m.there(w.Suite), target)
}

// start runs near, and far by there, as programs of s, and waits until connections get
// through.
func (o other) start(ctx context.Context, s *suite.Suite, there func(func() error) error, target string) (bench.Path, error) {
	s.Bin = suite.Binaries(o.dir)
	env := []string{"NEAR=" + line.AddrA.String(), "FAR=" + line.AddrB.String(), "TARGET=" + target, "PKI=" + s.PKI(""), "FILES=" + s.Dir}
	p := bench.Path{Name: o.name, Target: target, Dialer: through("tcp", o.front, o.greet)}
	if !strings.Contains(o.front, ":") {
		p.Dialer = through("unix", filepath.Join(s.Dir, o.front), o.greet)
	}
	_, err := s.Run("near", env)
	if err == nil {
		err = there(func() error { _, err := s.Run("far", env); return err })
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", o.name, err)
	}
	if err := awaitPath(ctx, s, p); err != nil {
		return p, fmt.Errorf("%s: near must listen at %s (%s/via), far must try until it reaches near, and both must stay: %w",
			o.name, o.front, o.dir, err)
	}
	return p, nil
}
