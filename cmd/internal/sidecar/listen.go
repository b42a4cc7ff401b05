package sidecar

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
)

// listenAddress is the address of a port of the sidecar.
func (o *Options) listenAddress(port uint16) string {
	return net.JoinHostPort(o.ServingAddress, strconv.Itoa(int(port)))
}

// handOver passes a connection to another front on the same port, or resets it once
// that front has stopped. It waits until the front accepts.
func handOver(to *admission.HandOff) func(tunnel.Conn) {
	return func(conn tunnel.Conn) {
		if !to.Give(context.Background(), conn) {
			_ = conn.Reset(&tunnel.ResetError{Code: tunnel.CodeShutdown})
		}
	}
}

// listen opens the listeners of --serving-port's front and of the second front.
func (s *sidecar) listen() (main, second []net.Listener, err error) {
	o := s.opts
	if o.servesTCP() {
		ln, err := s.Opened(cli.Listen("serving-port", o.listenAddress(o.ServingPort)))
		if err != nil {
			return main, second, err
		}
		s.self.add(ln)
		main = append(main, ln)
	}
	if o.ServingUDS != "" {
		uds := o.uds
		uds.Log = s.Log
		ln, err := s.Opened(unixsocket.Listen(o.ServingUDS, uds))
		if err != nil {
			return main, second, fmt.Errorf("--serving-uds: %w", err)
		}
		main = append(main, ln)
	}
	switch {
	case o.shared():
		ln, _ := s.Opened(admission.NewHandOff(main[0].Addr()), nil)
		second = append(second, ln)
	case o.serves(o.second()):
		ln, err := s.Opened(cli.Listen(o.secondFlag(), o.listenAddress(o.SecondPort)))
		if err != nil {
			return main, second, err
		}
		s.self.add(ln)
		second = append(second, ln)
	}
	return main, second, nil
}
