package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"konnectivity/e2e/suite"
)

// site is one server, or several that forward to one another, with a folder of tenants. The
// servers are the built programs. Tenants' agents and sidecars are links, by mTLS with a CA of
// each tenant's own.
type site struct {
	*fleet         // the links to the servers
	dir     string // of the tenants, which the servers read
	servers []*suite.Server
	flags   [][]string // of each server
}

// serve starts n servers with a new folder of that name. close must follow.
func serve(ctx context.Context, s *suite.Suite, name string, n int, more ...string) (*site, error) {
	at := &site{fleet: newFleet(ctx), dir: filepath.Join(s.Dir, name)}
	if err := os.Mkdir(at.dir, 0o755); err != nil {
		return nil, err
	}
	ports, err := s.Reserve(n)
	if err != nil {
		return nil, err
	}
	peers := ""
	for _, port := range ports {
		peers += "," + suite.Loopback(port)
	}
	flags := append([]string{"--tenants-dir=" + at.dir, "--enable-profiling"}, more...)
	for _, port := range ports {
		own := flags
		if n > 1 {
			own = append(slices.Clone(flags), fmt.Sprintf("--peer-port=%d", port), "--peer-bind-address=127.0.0.1", "--peer-servers="+peers[1:])
		}
		srv, err := s.StartServer(own...)
		if err != nil {
			return nil, err
		}
		at.servers, at.flags = append(at.servers, srv), append(at.flags, own)
	}
	return at, nil
}

// identities makes n clusters, from number first on.
func (at *site) identities(first, n int) (all []identity, err error) {
	all = make([]identity, n)
	for i := range all {
		if all[i], err = newIdentity(first+i, at.dir); err != nil {
			return nil, fmt.Errorf("make %s: %w", all[i].Name, err)
		}
	}
	return all, nil
}

// join makes n clusters, from number first on, and connects them to every server.
func (at *site) join(first, n int) error {
	all, err := at.identities(first, n)
	for _, srv := range at.servers {
		if err == nil {
			err = at.add(all, srv.AgentPort, srv.ClientPort)
		}
	}
	return err
}

// close ends all links, and the servers.
func (at *site) close() {
	at.fleet.close()
	for _, srv := range at.servers {
		srv.Kill()
	}
}

// cpuProfileTime is the length of a CPU profile: long enough for the first bulk tests.
const cpuProfileTime = 15 * time.Second

// saveProfiles writes profiles of the program with that admin port to a folder, as names that
// begin with prefix; "" is no folder.
func saveProfiles(ctx context.Context, adminPort int, folder, prefix string, names ...string) error {
	for _, name := range names {
		if folder == "" {
			break
		}
		page := "/debug/pprof/" + name
		if name == "profile" {
			page += fmt.Sprintf("?seconds=%d", int(cpuProfileTime.Seconds()))
		}
		if err := download(ctx, adminURL(adminPort, page), filepath.Join(folder, prefix+name+".prof")); err != nil {
			return err
		}
	}
	return nil
}

// adminURL is the URL of a page of an admin port.
func adminURL(port int, page string) string { return "http://" + suite.Loopback(port) + page }

// download writes a page to a file.
func download(ctx context.Context, url, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = get(ctx, url, f)
	return errors.Join(err, f.Close())
}

// get is suite.Get within roundTime.
func get(ctx context.Context, url string, to io.Writer) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	return suite.Get(ctx, url, to)
}
