package main

import (
	"cmp"
	"net"
	"strings"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/cli"
	"konnectivity/internal/pki"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

// apiPlace is one of --api-bind: HOST:PORT, or the path of a socket behind unix:.
type apiPlace struct {
	at  string
	log logrus.FieldLogger // of a socket's file; nil: none
}

// unixPrefix marks the path of a socket.
const unixPrefix = "unix:"

// check returns a usage error unless there may be a listener.
func (a apiPlace) check() error {
	if path, is := strings.CutPrefix(a.at, unixPrefix); is {
		if !strings.HasPrefix(path, "/") {
			return cli.Usagef("--api-bind=%q: the path of a socket begins with a slash", a.at)
		}
		return nil
	}
	host, _, err := tunnel.SplitAddress(a.at)
	switch {
	case err != nil:
		return cli.Usagef("--api-bind=%q: want HOST:PORT or unix:PATH", a.at)
	case net.ParseIP(strings.Trim(host, "[]")) == nil && host != "localhost":
		return cli.Usagef("--api-bind=%q: want an address of this node, such as 127.0.0.1:6443; a name may be another's", a.at)
	}
	return nil
}

// Listen implements place.
func (a apiPlace) Listen() (net.Listener, error) {
	if path, is := strings.CutPrefix(a.at, unixPrefix); is {
		return unixsocket.Listen(path, unixsocket.Options{Replace: true, Log: a.log})
	}
	return cli.Listen("api-bind", a.at)
}

// Addr implements place.
func (a apiPlace) Addr() net.Addr { return tunnel.Addr{Net: "tcp", Text: a.at} }

// checkAPI checks --api-bind and --api-server, and sets what the latter implies.
func (f *flags) checkAPI() error {
	o := &f.options
	o.BesideAPI = len(f.apiServers) > 0
	switch {
	case len(f.api) > 0 && o.Link == link.Off:
		return cli.Usagef("--api-bind and --link=off exclude each other: the API server is reached by links")
	case o.BesideAPI:
		return cmp.Or(cli.FlagError("api-server", race.CheckTargets(f.apiServers)), f.checkBeside())
	}
	for _, at := range f.api {
		if err := (apiPlace{at: at}).check(); err != nil {
			return err
		}
	}
	return nil
}

// checkBeside returns a usage error for flags that an agent beside the API server cannot
// have.
func (f *flags) checkBeside() error {
	for name, why := range map[string]string{
		"api-bind":                   "that is for agents of nodes",
		"agent-identifiers":          "servers pick this agent for the API server alone",
		"service-account-token-path": "the servers' port for clients takes certificates alone",
	} {
		if f.set.Changed(name) {
			return cli.Usagef("--api-server and --%s exclude each other: %s", name, why)
		}
	}
	if f.options.Link == link.Off {
		return cli.Usagef("--api-server and --link=off exclude each other: servers ask by links")
	}
	f.options.Link = link.Require
	return nil
}

// role is what this agent's certificate must be for.
func (f *flags) role() pki.Role {
	if f.options.BesideAPI {
		return pki.RoleClient
	}
	return pki.RoleAgent
}
