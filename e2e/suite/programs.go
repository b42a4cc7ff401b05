package suite

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// Server is a running konnectivity-server.
type Server struct {
	*Process
	ClientPort, AgentPort, HealthPort, AdminPort int
	UDS                                          string // "" without
}

// HealthURL returns the URL of a page of the health port.
func (s *Server) HealthURL(path string) string {
	return fmt.Sprintf("http://%s%s", Loopback(s.HealthPort), path)
}

// DialBound is how long a dial may take where a test does not set it: a busy machine
// can need more than the 10 s of a server and agent left to themselves.
const DialBound = time.Minute

// StartServer runs a server with mTLS for clients and agents and a unix socket,
// all on ports of its own, and waits until it listens. more is appended to the
// flags, so it can override them.
func (s *Suite) StartServer(more ...string) (*Server, error) {
	srv, err := s.LaunchServer(more...)
	if err != nil {
		return nil, err
	}
	return srv, srv.ready()
}

// LaunchServer is StartServer without waiting for the server, for one in a network
// that this process is not in.
func (s *Suite) LaunchServer(more ...string) (*Server, error) {
	ports, err := s.Reserve(4)
	if err != nil {
		return nil, err
	}
	srv := &Server{ClientPort: ports[0], AgentPort: ports[1], HealthPort: ports[2], AdminPort: ports[3],
		UDS: filepath.Join(s.Dir, "srv"+strconv.Itoa(ports[0]))}
	return srv, s.launch(srv, more)
}

// RunServer starts srv, perhaps again, on its ports.
func (s *Suite) RunServer(srv *Server, more ...string) error {
	if err := s.launch(srv, more); err != nil {
		return err
	}
	return srv.ready()
}

// ready waits until the server listens.
func (s *Server) ready() error { return WaitReady(s.Process, s.HealthURL("/healthz")) }

// launch starts the program.
func (s *Suite) launch(srv *Server, more []string) error {
	args := []string{
		"--server-port=" + strconv.Itoa(srv.ClientPort), "--server-bind-address=127.0.0.1",
		"--agent-port=" + strconv.Itoa(srv.AgentPort), "--agent-bind-address=127.0.0.1",
		"--health-port=" + strconv.Itoa(srv.HealthPort), "--health-bind-address=127.0.0.1",
		"--admin-port=" + strconv.Itoa(srv.AdminPort), "--uds-name=" + srv.UDS,
		"--server-ca-cert=" + s.PKI("ca.crt"), "--server-cert=" + s.PKI("server.crt"), "--server-key=" + s.PKI("server.key"),
		"--cluster-ca-cert=" + s.PKI("ca.crt"), "--cluster-cert=" + s.PKI("cluster.crt"), "--cluster-key=" + s.PKI("cluster.key"),
		"--backend-dial-timeout=" + DialBound.String(),
	}
	p, err := s.Run("konnectivity-server", nil, append(args, more...)...)
	if err != nil {
		return err
	}
	srv.Process = p
	return nil
}

// Agent is a running konnectivity-agent.
type Agent struct {
	*Process
	HealthPort, AdminPort int
}

// HealthURL returns the URL of a page of the health port.
func (a *Agent) HealthURL(path string) string {
	return fmt.Sprintf("http://%s%s", Loopback(a.HealthPort), path)
}

// StartAgent runs an agent of srv and waits until it is connected.
func (s *Suite) StartAgent(srv *Server, more ...string) (*Agent, error) {
	a, err := s.LaunchAgent(srv, more...)
	if err != nil {
		return nil, err
	}
	return a, WaitReady(a.Process, a.HealthURL("/readyz"))
}

// LaunchAgent is StartAgent for an agent that may be refused: it does not wait.
func (s *Suite) LaunchAgent(srv *Server, more ...string) (*Agent, error) {
	ports, err := s.Reserve(2)
	if err != nil {
		return nil, err
	}
	a := &Agent{HealthPort: ports[0], AdminPort: ports[1]}
	args := []string{
		"--proxy-server-host=127.0.0.1", "--proxy-server-port=" + strconv.Itoa(srv.AgentPort),
		"--health-server-host=127.0.0.1", "--health-server-port=" + strconv.Itoa(a.HealthPort),
		"--admin-server-port=" + strconv.Itoa(a.AdminPort),
		"--ca-cert=" + s.PKI("ca.crt"), "--agent-cert=" + s.PKI("agent.crt"), "--agent-key=" + s.PKI("agent.key"),
		"--dial-timeout=" + DialBound.String(),
	}
	a.Process, err = s.Run("konnectivity-agent", nil, append(args, more...)...)
	return a, err
}

// Sidecar is a running SOCKS5 or HTTPS proxy.
type Sidecar struct {
	*Process
	Port int
}

// Address is where the sidecar serves clients.
func (s *Sidecar) Address() string { return Loopback(s.Port) }

// StartSOCKS5 runs a SOCKS5 sidecar of srv and waits until it listens.
func (s *Suite) StartSOCKS5(srv *Server, more ...string) (*Sidecar, error) {
	return s.startSidecar("konnectivity-socks5-proxy", srv, nil, more...)
}

// StartHTTPS runs an HTTPS sidecar of srv and waits until it listens.
func (s *Suite) StartHTTPS(srv *Server, more ...string) (*Sidecar, error) {
	return s.startSidecar("konnectivity-https-proxy", srv, nil, more...)
}

func (s *Suite) startSidecar(program string, srv *Server, env []string, more ...string) (*Sidecar, error) {
	ports, err := s.Reserve(1)
	if err != nil {
		return nil, err
	}
	port := ports[0]
	args := []string{
		"--konnectivity-hostname=127.0.0.1", "--konnectivity-port=" + strconv.Itoa(srv.ClientPort),
		"--serving-port=" + strconv.Itoa(port), "--ca-cert-path=" + s.PKI("ca.crt"),
		"--tls-cert-path=" + s.PKI("client.crt"), "--tls-key-path=" + s.PKI("client.key"),
		"--dial-timeout=" + DialBound.String(),
	}
	p, err := s.Run(program, env, append(args, more...)...)
	if err != nil {
		return nil, err
	}
	return &Sidecar{Process: p, Port: port}, WaitListening(p, "tcp", Loopback(port))
}
