package main

import (
	"net"
	"strings"

	"konnectivity/internal/cli"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
)

// apiPlace is one of --api-bind: HOST:PORT, or the path of a socket behind unix:.
type apiPlace string

// unixPrefix marks the path of a socket.
const unixPrefix = "unix:"

// check returns a usage error unless there may be a listener.
func (a apiPlace) check() error {
	if path, is := strings.CutPrefix(string(a), unixPrefix); is {
		if !strings.HasPrefix(path, "/") {
			return cli.Usagef("--api-bind=%q: the path of a socket begins with a slash", string(a))
		}
		return nil
	}
	host, port, err := tunnel.SplitAddress(string(a))
	switch {
	case err != nil || port == 0:
		return cli.Usagef("--api-bind=%q: want HOST:PORT or unix:PATH", string(a))
	case net.ParseIP(strings.Trim(host, "[]")) == nil && host != "localhost":
		return cli.Usagef("--api-bind=%q: want an address of this node, such as 127.0.0.1:6443; a name may be another's", string(a))
	}
	return nil
}

// Listen implements place.
func (a apiPlace) Listen() (net.Listener, error) {
	if path, is := strings.CutPrefix(string(a), unixPrefix); is {
		return unixsocket.Listen(path, unixsocket.Options{Replace: true})
	}
	return cli.Listen("api-bind", string(a))
}

// Addr implements place.
func (a apiPlace) Addr() net.Addr { return tunnel.Addr{Net: "tcp", Text: string(a)} }

// checkAPI checks --api-bind.
func (f *flags) checkAPI() error {
	if len(f.api) > 0 && f.options.Link == "off" {
		return cli.Usagef("--api-bind and --link=off exclude each other: the API server is reached by links")
	}
	for _, at := range f.api {
		if err := apiPlace(at).check(); err != nil {
			return err
		}
	}
	return nil
}
